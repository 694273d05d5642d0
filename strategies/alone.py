"""Each client trains by itself: the baseline without any communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, TypeVar

from flwr.common import EvaluateIns, FitIns, NDArrays, Parameters
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from adasplit_flwr.plans import FRESH
from strategies.answers import member_of
from strategies.client_rounds import StatePlan
from strategies.dense_replies import check_count
from strategies.lasting_fedavg import LastingFedAvg
from strategies.replies import Reply
from strategies.state import State
from zerofl_flwr.model_arrays import Array

_Instructions = TypeVar("_Instructions", FitIns, EvaluateIns)


class Alone(LastingFedAvg):
    """Nothing is shared: what each client reaches on its own data, from a common start.

    In a round, clients are chosen and told to go on as in FedAvg; a client that has no network of
    its own yet gets the common start with that message. It trains the whole network, keeps it and
    its optimizer, and replies with a few numbers. The model of the strategy stays the common start.

    Parameters
    ----------
    run : str
        Name of the run, under which clients keep their networks.
    **options
        Those of Flower's FedAvg. ``evaluate_fn`` would test the common start; clients test their
        own networks.

    Raises
    ------
    SettingsError
        If `run` cannot be a folder's name, or an option is none of FedAvg's.

    Notes
    -----
    Clients must be :class:`simulations.baselines.AloneClient`. A client goes on from the last round
    whose reply passed. One that has lost its network begins again from the common start, with a
    warning; that needs failures that name their client, as those under
    :class:`strategies.Baseline` do.
    """

    def __init__(self, *, run: str = "run", **options: Any) -> None:
        super().__init__(run=run, **options)

    def __repr__(self) -> str:
        """Name the strategy."""
        return "Alone()"

    def has_trained(self, client: int) -> bool:
        """Say whether a client has a network of its own."""
        return client in self.rounds

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Choose clients as FedAvg does; send the common start to who has nothing yet."""
        pairs = super().configure_fit(server_round, parameters, client_manager)
        self.rounds.begin()
        plans = [self.rounds.ask(member_of(c).partition_id, server_round) for c, _ in pairs]
        return _with_plans(pairs, plans)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Choose clients as FedAvg does; who has no network of its own tests the common start."""
        pairs = super().configure_evaluate(server_round, parameters, client_manager)
        plans = [self.rounds.plan(member_of(c).partition_id, server_round) for c, _ in pairs]
        return _with_plans(pairs, plans)

    def check_reply(self, server_round: int, reply: Reply) -> None:
        """Refuse what is not of this round, or brings arrays."""
        super().check_reply(server_round, reply)
        check_count(reply.result.parameters.tensors, 0, str(reply.member))

    def combine(self, server_round: int, good: Sequence[Reply]) -> NDArrays:
        """Note who has trained, and return the common start."""
        for reply in good:
            self.rounds.trained(reply.member.partition_id, server_round)
        return self.model.arrays

    def begin_again(self, server_round: int, client: int) -> None:
        """Let a client that has lost its network begin from the common start."""
        log(
            WARNING,
            "round %d: client %d has lost its network, and begins again from the common start "
            "when it next trains",
            server_round,
            client,
        )
        self.rounds.forget(client)

    def state_arrays(self) -> State:
        """Return which round each client's network is of."""
        return self.rounds.state_arrays()

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is another strategy's.
        """
        self.rounds.load_state_arrays(state)


def _with_plans(
    pairs: Sequence[tuple[ClientProxy, _Instructions]], plans: Sequence[StatePlan]
) -> list[tuple[ClientProxy, _Instructions]]:
    """Put plans beside what FedAvg sends; the model only where a client begins."""
    messages: dict[StatePlan, _Instructions] = {}
    outgoing: list[tuple[ClientProxy, _Instructions]] = []
    for (client, wanted), plan in zip(pairs, plans, strict=True):
        if plan not in messages:
            model = wanted.parameters
            if plan.state_round != FRESH:
                model = Parameters([], model.tensor_type)
            messages[plan] = type(wanted)(model, {**wanted.config, **plan.to_config()})
        outgoing.append((client, messages[plan]))
    return outgoing
