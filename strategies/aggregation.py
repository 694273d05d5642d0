"""From a round's good replies to the new global model, through the wrapped strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flwr.common import Parameters, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import Strategy

from strategies.accumulator import MeanAccumulator
from strategies.downlink import GlobalModel
from strategies.replies import Failure, Reply, ReplyChecker
from strategies.wrapped import aggregate_each, aggregate_mean, check_finite, in_own_dtypes
from zerofl_flwr.errors import RoundFailedError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.settings import ZeroFLSettings


class Aggregation:
    """One round's aggregation (section 3.2 of the ZeroFL paper).

    Parameters
    ----------
    strategy : Strategy
        The wrapped strategy, which makes the new model of the mean.
    model : GlobalModel
        The model that the round started from; updated in place once a new one is good.
    checker : ReplyChecker
        Decodes the round's replies.
    settings : ZeroFLSettings
        ``aggregation`` and ``per_client`` count here.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: GlobalModel,
        checker: ReplyChecker,
        settings: ZeroFLSettings,
    ) -> None:
        self._strategy = strategy
        self._model = model
        self._checker = checker
        self._settings = settings

    def run(
        self, server_round: int, good: Sequence[Reply], failures: Sequence[Failure]
    ) -> tuple[Parameters, dict[str, Scalar]]:
        """Make the new global model of replies that passed their checks.

        Parameters
        ----------
        server_round : int
            Round number, from 1.
        good : sequence of Reply
            In partition order, at least one.
        failures : sequence
            What the wrapped strategy is told of everybody else.

        Returns
        -------
        tuple
            The new model, dense, in its own dtypes; and the wrapped strategy's metrics.

        Raises
        ------
        RoundFailedError
            If the strategy makes no model, one of other shapes, or one that is not finite.
        """
        model, name = self._model, type(self._strategy).__name__
        mean: list[Array] | None = None
        if self._settings.per_client:
            parameters, metrics = aggregate_each(
                self._strategy, server_round, self._densified(good), good, failures
            )
        else:
            mean = self._mean(good)
            check_finite(mean, model.names, f"round {server_round}: the mean of the replies")
            parameters, metrics = aggregate_mean(self._strategy, server_round, mean, good, failures)
        if parameters is None:
            raise RoundFailedError(
                f"round {server_round}: {name} made no model of {len(good)} good replies and "
                f"{len(failures)} failures"
            )
        origin = f"round {server_round}: the model that {name} made"
        arrays = in_own_dtypes(parameters_to_ndarrays(parameters), model.specs, origin)
        arrays = model.pruned(model.with_kept(arrays, mean))
        check_finite(arrays, model.names, origin)
        model.arrays = arrays
        return ndarrays_to_parameters(arrays), metrics

    def _mean(self, good: Sequence[Reply]) -> list[Array]:
        accumulator = self._accumulator(sum(reply.result.num_examples for reply in good))
        for reply in good:
            self._add(reply, accumulator)
        return accumulator.result()

    def _densified(self, good: Sequence[Reply]) -> Iterator[list[Array]]:
        for reply in good:
            accumulator = self._accumulator(reply.result.num_examples)
            self._add(reply, accumulator)
            yield accumulator.result()

    def _accumulator(self, total_examples: int) -> MeanAccumulator:
        return MeanAccumulator(
            self._model.arrays,
            total_examples,
            senders_only=self._settings.aggregation == "senders",
            patterns=self._model.patterns,
        )

    def _add(self, reply: Reply, accumulator: MeanAccumulator) -> None:
        update = self._checker.decode(reply)
        self._model.learn(update.names, update.masked, sender=str(reply.member))
        accumulator.add(update.entries, reply.result.num_examples)
