"""What strategies of ours that average share: Flower's FedAvg with replies that are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from logging import WARNING
from typing import Any

from flwr.common import (
    FitIns,
    FitRes,
    NDArrays,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg

from strategies.answers import sort_replies
from strategies.dense_replies import split_checked
from strategies.downlink import GlobalModel
from strategies.replies import Failure, Reply
from zerofl_flwr.errors import SettingsError


class CheckedFedAvg(FedAvg, ABC):
    """FedAvg in all but what makes a model of the replies, which are checked before.

    Replies are taken in partition order. One that fails its checks is refused with a warning that
    names the client and the field, and leaves no trace; with ``accept_failures=False`` the round
    then makes no model, as in FedAvg.

    Parameters
    ----------
    array_names : sequence of str, optional
        Names of the model's arrays, ``list(model.state_dict())``: with them errors name layers, and
        BatchNorm's statistics are known.
    **options
        Those of Flower's FedAvg.

    Attributes
    ----------
    restarts : int
        How many clients had lost what they keep, in the round that was aggregated last.

    Raises
    ------
    SettingsError
        If an option is none of FedAvg's.
    """

    def __init__(self, *, array_names: Sequence[str] | None = None, **options: Any) -> None:
        try:
            super().__init__(**options)
        except TypeError as error:
            raise SettingsError(f"{type(self).__name__}: {error}") from error
        self.model = GlobalModel(sparse_downlink=False, array_names=array_names)
        self.restarts = 0

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Choose clients as FedAvg does, and remember the model that they are sent."""
        self.model.take(parameters)
        return super().configure_fit(server_round, parameters, client_manager)

    @abstractmethod
    def check_reply(self, server_round: int, reply: Reply) -> None:
        """Refuse a reply to the present round that cannot be used.

        Raises
        ------
        PayloadError
            Naming the client and the field.
        """

    @abstractmethod
    def combine(self, server_round: int, good: Sequence[Reply]) -> NDArrays:
        """Make the new model of at least one good reply; in partition order.

        Raises
        ------
        RoundFailedError
            If it would not be finite; nothing has changed then.
        """

    def lost_among(self, failures: Sequence[Failure]) -> list[int]:
        """Return the failed clients that have lost what they keep, and are to begin again.

        Nothing changes yet. In most strategies clients keep nothing, and so lose nothing.
        """
        return []

    def note_failures(self, server_round: int, failures: Sequence[Failure]) -> int:
        """Hear of who failed, once the good replies are taken; most strategies need not.

        Returns
        -------
        int
            How many clients have lost what they keep, so that they begin again.
        """
        return 0

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Failure],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check the replies, and make the new model of the good ones.

        Returns
        -------
        tuple
            The new model in its own dtypes, None where there was no good reply; and what
            ``fit_metrics_aggregation_fn`` makes of the good replies' metrics.

        Raises
        ------
        RoundFailedError
            If the new model would not be finite.
        """
        replies, _ = sort_replies(results, [])
        good, refused = split_checked(replies, lambda reply: self.check_reply(server_round, reply))
        for refusal in refused:
            log(WARNING, "round %d: %s", server_round, refusal.reason)
        failed = bool(failures or refused) and not self.accept_failures
        arrays = None if failed or not good else self.combine(server_round, good)
        self.restarts = self.note_failures(server_round, failures)
        if arrays is None:
            return None, {}
        metrics: dict[str, Scalar] = {}
        if self.fit_metrics_aggregation_fn is not None:
            told = [(reply.result.num_examples, reply.result.metrics) for reply in good]
            metrics = self.fit_metrics_aggregation_fn(told)
        return ndarrays_to_parameters(arrays), metrics
