"""The messages that go down in a round of AdaSplit: each client's plan and what belongs to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from flwr.common import EvaluateIns, FitIns, Parameters, ndarrays_to_parameters

from adasplit_flwr.gradient_payload import encode_gradients
from adasplit_flwr.masked_server import MaskedServer
from adasplit_flwr.plans import FRESH, ExchangePlan, TestPlan
from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.weights_payload import encode_server_part
from strategies.adasplit_clients import Gradients, KnownClients
from strategies.adasplit_weights import ClientWeights
from strategies.member import Member
from strategies.metering import Meter
from zerofl_flwr.errors import PayloadError

_TENSOR_TYPE = "numpy.ndarray"

PlanType = TypeVar("PlanType", ExchangePlan, TestPlan)


@dataclass
class Asked(Generic[PlanType]):
    """Who was sent what in a round's training, or test.

    Parameters
    ----------
    members : list of Member
        In partition order.
    plans : dict of int to plan
        By partition id.
    meter : Meter
        Of the messages; it holds them, so this is to be let go when the replies are in.
    """

    members: list[Member] = field(default_factory=list)
    plans: dict[int, PlanType] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)

    def plan_of(self, member: Member) -> PlanType:
        """Return a client's plan.

        Raises
        ------
        PayloadError
            If it was sent none.
        """
        plan = self.plans.get(member.partition_id)
        if plan is None:
            reason = "a reply came, but it was not asked in this round"
            raise PayloadError(reason, sender=str(member), field="round")
        return plan


class Downlink:
    """Writes the messages of one round (AdaSplit, arXiv 2112.01637).

    What several clients are sent is encoded once, and equal messages are one object.

    Parameters
    ----------
    settings : AdaSplitSettings
        The method's.
    run : str
        Name of the run.
    server_round : int
        Round number, from 1.
    clients : KnownClients
        Whose state is that of which round, and which gradients wait.
    weights : ClientWeights
        What a fresh client starts from, or what is shared.
    """

    def __init__(
        self,
        settings: AdaSplitSettings,
        run: str,
        server_round: int,
        clients: KnownClients,
        weights: ClientWeights,
    ) -> None:
        self._settings = settings
        self._run = run
        self._round = server_round
        self._clients = clients
        self._weights = weights
        self._exchanges: dict[ExchangePlan, FitIns] = {}
        self._tests: dict[TestPlan, EvaluateIns] = {}
        self._plain_part: list[bytes] = []

    def exchange(
        self,
        client: int,
        learning_rate: float,
        *,
        upload: bool,
        begins: bool = False,
        shares: bool = False,
        finishes: bool = False,
    ) -> tuple[ExchangePlan, FitIns]:
        """Write one client's training message.

        Gradients that wait go along, unless weights do: they belong to those that the client had.

        Parameters
        ----------
        client : int
            Partition id.
        learning_rate : float
            Of the client's Adam.
        upload : bool
            Whether it is to upload activations.
        begins : bool
            Whether it goes on from the weights at the server, as a fresh client always does.
        shares : bool
            Whether it is to upload its weights.
        finishes : bool
            Whether it is to take no batch.
        """
        chosen = self._settings
        weights = self._weights_for(client, begins)
        waiting = [] if weights else self._clients.gradients(client)
        gradients = gradient_tensors(waiting, self._round) if waiting else []
        plan = exchange_plan(
            chosen,
            self._run,
            self._round,
            self._clients.state_round(client),
            learning_rate=learning_rate,
            upload=upload,
            shares=shares,
            finishes=finishes,
            weight_arrays=len(weights),
            gradient_arrays=len(gradients),
        )
        if plan in self._exchanges and not gradients:
            return plan, self._exchanges[plan]
        message = FitIns(_message([*weights, *gradients]), {**plan.to_config()})
        if not gradients:
            self._exchanges[plan] = message
        return plan, message

    def test(self, client: int, server: MaskedServer) -> tuple[TestPlan, EvaluateIns]:
        """Write one client's test message; a test at the client takes its own server part along.

        Parameters
        ----------
        client : int
            Partition id. One that never trained tests the weights that it would start from; where
            they are shared, everybody tests those that were shared last.
        server : MaskedServer
            Gives the client's server part.
        """
        upload = self._settings.inference == "server"
        weights = self._weights_for(client, self._settings.shares_weights)
        part = [] if upload else self._part(client, server)
        plan = TestPlan(
            run=self._run,
            server_round=self._round,
            state_round=self._clients.state_round(client),
            upload=upload,
            weight_arrays=len(weights),
            server_arrays=len(part),
        )
        own_part = bool(part) and server.masks != "none"
        if plan in self._tests and not own_part:
            return plan, self._tests[plan]
        message = EvaluateIns(_message([*weights, *part]), {**plan.to_config()})
        if not own_part:
            self._tests[plan] = message
        return plan, message

    @cached_property
    def _weight_tensors(self) -> list[bytes]:
        return self._weights.encode(self._round)

    def _weights_for(self, client: int, begins: bool) -> list[bytes]:
        fresh = self._clients.state_round(client) == FRESH
        return self._weight_tensors if begins or fresh else []

    def _part(self, client: int, server: MaskedServer) -> list[bytes]:
        if server.masks == "none" and self._plain_part:
            return self._plain_part
        payload = encode_server_part(server.submodel(client), server_round=self._round)
        tensors = ndarrays_to_parameters(payload).tensors
        if server.masks == "none":
            self._plain_part = tensors
        return tensors


def exchange_plan(
    settings: AdaSplitSettings,
    run: str,
    server_round: int,
    state_round: int,
    *,
    learning_rate: float,
    upload: bool,
    shares: bool,
    finishes: bool,
    weight_arrays: int,
    gradient_arrays: int,
) -> ExchangePlan:
    """Put a client's plan together; what `settings` has no part in is as in :class:`Downlink`."""
    return ExchangePlan(
        run=run,
        server_round=server_round,
        state_round=state_round,
        iterations=0 if finishes else settings.iterations_per_round or 0,
        finish=finishes,
        upload=upload,
        upload_weights=shares,
        weight_arrays=weight_arrays,
        gradient_arrays=gradient_arrays,
        learning_rate=learning_rate,
        weight_decay=float(settings.adam_weight_decay),
        local_loss=settings.local_loss,
        temperature=float(settings.temperature),
        activation_penalty=float(settings.activation_penalty),
        precision=settings.precision,
    )


def gradient_tensors(gradients: Gradients, server_round: int) -> list[bytes]:
    """Encode the gradients of a client's last exchange, in float32, as tensors of a message.

    Raises
    ------
    PayloadError
        If one of a server part in float64 is too large for that.
    """
    with np.errstate(over="ignore"):
        batches = [(batch, np.asarray(gradient, np.float32)) for batch, gradient in gradients]
    payload = encode_gradients(batches, server_round=server_round)
    return ndarrays_to_parameters(payload).tensors


def _message(tensors: list[bytes]) -> Parameters:
    return Parameters(tensors, _TENSOR_TYPE)
