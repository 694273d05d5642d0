"""A thin wrapper around any averaging Flower strategy: checked replies, metered, in fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING

from flwr.common import (
    EvaluateIns,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from strategies.alone import Alone
from strategies.answers import Refusal, judge, name_missing, sort_replies
from strategies.checked_fedavg import CheckedFedAvg
from strategies.client_tests import ClientTestReport
from strategies.dense_mean import mean_model
from strategies.dense_replies import check_model, check_round_told, read_arrays, split_checked
from strategies.replies import Failure, Reply
from strategies.reports import BaselineRoundReport, client_reports
from strategies.state import State, load_strategy_state, prefixed, strategy_state, unprefixed
from strategies.wrapped import check_finite, in_own_dtypes
from strategies.wrapper import Wrapper, check_count
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.settings import FAILURE_POLICIES


class Baseline(Wrapper):
    """Runs a strategy as it is, with what is needed to compare it and to repeat it.

    Clients are sampled by (seed, round) and known by their partition id; the bytes of each message
    are measured; a reply that cannot be used is refused by client and field, counts as a failure
    with its reason, and the round goes on; replies reach the strategy in partition order. So the
    same seed gives the same bits on every backend.

    Parameters
    ----------
    strategy : flwr.server.strategy.Strategy
        One of Flower's that average, or :class:`strategies.Scaffold`, :class:`strategies.FedNova`,
        :class:`strategies.Alone`. It samples, configures and evaluates as always.
    array_names : sequence of str, optional
        Names of the model's arrays, ``list(model.state_dict())``: with them errors name layers, and
        BatchNorm's statistics take the plain mean also under a server optimizer.
    evaluate_every : int
        Clients test in every so many rounds.
    last_round : int, optional
        And in this one.
    min_replies : int
        Good replies that a round needs. Where clients that have lost what they keep (those of
        `Scaffold`, `Alone`) could make up for what is missing, the model stays as it is, the good
        replies are refused, and the run goes on with these clients beginning again.
    on_failure : str
        ``"skip"``, or ``"raise"`` to end the run for any failure.
    seed : int
        Seeds which clients are sampled.
    on_round : callable, optional
        Called with a :class:`strategies.BaselineRoundReport` after each round's aggregation.
    on_test : callable, optional
        Called with a :class:`strategies.ClientTestReport` after each test by clients.

    Raises
    ------
    SettingsError
        If `strategy` is none, or an option cannot work.

    Notes
    -----
    Clients may be any of Flower's; :mod:`simulations.baselines` has those of the simulations. Where
    a reply has a metric ``round``, it must be the present one. Integer arrays, such as BatchNorm's
    ``num_batches_tracked``, keep the server's value.

    Examples
    --------
    >>> from flwr.server.strategy import FedAvg
    >>> Baseline(FedAvg(fraction_fit=0.5))
    Baseline(FedAvg(accept_failures=True))
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        array_names: Sequence[str] | None = None,
        evaluate_every: int = 1,
        last_round: int | None = None,
        min_replies: int = 1,
        on_failure: str = "skip",
        seed: int = 0,
        on_round: Callable[[BaselineRoundReport], None] | None = None,
        on_test: Callable[[ClientTestReport], None] | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise SettingsError(f"Baseline runs a flwr.server.strategy.Strategy; got {strategy!r}")
        if on_failure not in FAILURE_POLICIES:
            raise SettingsError(unknown_name("on_failure", on_failure, FAILURE_POLICIES))
        check_count("min_replies", min_replies)
        super().__init__(
            strategy,
            array_names=array_names,
            sparse_downlink=False,
            seed=seed,
            evaluate_every=evaluate_every,
            last_round=last_round,
            on_test=on_test,
        )
        self.on_round = on_round
        self._min_replies, self._on_failure = min_replies, on_failure

    def __repr__(self) -> str:
        """Name the strategy."""
        return f"Baseline({self.strategy!r})"

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Let the strategy choose clients and write their messages.

        Raises
        ------
        RoundFailedError
            If no client could be sampled.
        """
        self.model.take(parameters)
        return self._ask_to_train(server_round, parameters, client_manager)

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Failure],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check the replies, let the strategy make a model of the good ones, report.

        Returns
        -------
        tuple
            The new model in its own dtypes; and the strategy's metrics with the round's figures.

        Raises
        ------
        RoundFailedError
            If fewer than ``min_replies`` replies are good, also with those of clients that begin
            again next time; if any failed under ``on_failure="raise"``; if the strategy makes no
            model, or one that is not finite.
        """
        replies, refusals = sort_replies(results, failures)
        good, refused = split_checked(replies, lambda reply: self._check(server_round, reply))
        refusals = name_missing(self._asked, good, [*refusals, *refused])
        own = self.strategy if isinstance(self.strategy, CheckedFedAvg) else None
        judge(
            server_round,
            len(good),
            refusals,
            min_replies=self._min_replies,
            on_failure=self._on_failure,
            restarts=len(own.lost_among(failures)) if own else 0,
        )
        if len(good) < self._min_replies:
            left = self._left_out(server_round, good)
            good, refused, refusals = [], [*refused, *left], [*refusals, *left]
        untaken = [*failures, *(RoundFailedError(refusal.reason) for refusal in refused)]
        parameters, metrics = self.strategy.aggregate_fit(
            server_round, [(reply.member, reply.result) for reply in good], untaken
        )
        parameters = self._finished(server_round, parameters, good, len(untaken))
        restarts = own.restarts if own else 0
        clients = client_reports(good, refusals, self._meter)
        report = BaselineRoundReport(server_round, clients, restarts)
        self._round_is_over()
        if self.on_round is not None:
            self.on_round(report)
        return parameters, {**report.metrics(), **metrics}

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Let the strategy choose who tests, in the rounds that are tested."""
        return self._ask_to_test(server_round, parameters, client_manager)

    def state_arrays(self) -> State:
        """Return what the next round depends on: the strategy's."""
        return prefixed("wrapped", strategy_state(self.strategy))

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Continue from what :meth:`state_arrays` returned."""
        load_strategy_state(self.strategy, unprefixed("wrapped", state))

    def _check(self, server_round: int, reply: Reply) -> None:
        if isinstance(self.strategy, CheckedFedAvg):
            self.strategy.check_reply(server_round, reply)
            return
        check_round_told(reply.result.metrics, server_round, str(reply.member), required=False)
        check_model(reply, self.model.specs, self.model.names)

    def _left_out(self, server_round: int, good: Sequence[Reply]) -> list[Refusal]:
        """Refuse the good replies of a round that has too few of them."""
        few = f"{len(good)} good replies, {self._min_replies} needed"
        log(
            WARNING,
            "round %d: %s: the model stays as it is, until clients have begun again",
            server_round,
            few,
        )
        return [
            Refusal(reply.member.partition_id, f"{reply.member}: left out: {few}") for reply in good
        ]

    def _finished(
        self, server_round: int, parameters: Parameters | None, good: Sequence[Reply], failed: int
    ) -> Parameters:
        """Bring a strategy's new model to the model's dtypes, and see that it is finite."""
        name, model = type(self.strategy).__name__, self.model
        if not good:  # there are clients that begin again
            return ndarrays_to_parameters(model.arrays)
        if parameters is None:
            raise RoundFailedError(
                f"round {server_round}: {name} made no model of {len(good)} good replies and "
                f"{failed} failures"
            )
        if isinstance(self.strategy, CheckedFedAvg):
            return parameters
        origin = f"round {server_round}: the model that {name} made"
        arrays = in_own_dtypes(parameters_to_ndarrays(parameters), model.specs, origin)
        arrays = model.with_kept(arrays, self._mean(good) if model.has_statistics else None)
        check_finite(arrays, model.names, origin)
        return ndarrays_to_parameters(arrays)

    def _mean(self, good: Sequence[Reply]) -> list[Array]:
        model = self.model
        total = sum(reply.result.num_examples for reply in good)
        models = (
            (
                read_arrays(
                    reply.result.parameters.tensors, model.specs, model.names, str(reply.member)
                ),
                reply.result.num_examples,
            )
            for reply in good
        )
        return mean_model(model.arrays, models, total)

    def _has_trained(self, client: int) -> bool:
        return not isinstance(self.strategy, Alone) or self.strategy.has_trained(client)
