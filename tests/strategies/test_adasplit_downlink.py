"""Messages are written once for all who are sent the same, and hold what their plan announces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adasplit_flwr.plans import ExchangePlan, TestPlan
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_clients import KnownClients
from strategies.adasplit_downlink import Asked, Downlink, gradient_tensors
from strategies.adasplit_server import build_server
from strategies.adasplit_weights import ClientWeights
from strategies.member import Member
from strategies.metering import Meter, Traffic
from tests.strategies.adasplit_federation import tiny_split
from tests.strategies.federation import Node
from zerofl_flwr.errors import PayloadError

GRADIENTS = [(0, np.ones((2, 5), np.float32)), (1, np.zeros((1, 5), np.float32))]


def downlink(**options: Any) -> tuple[Downlink, KnownClients]:
    split, clients = tiny_split(), KnownClients()
    settings = AdaSplitSettings(**options)
    return Downlink(settings, "run", 5, clients, ClientWeights(split.client, split.head)), clients


def test_equal_messages_are_one_object() -> None:
    written, clients = downlink()
    clients.trained(2, 4, [])
    clients.trained(3, 3, [])
    messages = {c: written.exchange(c, 0.1, upload=c == 1)[1] for c in range(4)}
    again = written.exchange(7, 0.1, upload=False)[1]
    assert again is messages[0]
    assert len({id(message) for message in messages.values()}) == 4
    # Who is fresh shares the weights' bytes, whatever else its plan says.
    first, second = (messages[client].parameters.tensors for client in (0, 1))
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert messages[2].parameters.tensors == messages[3].parameters.tensors == []


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("shares", [False, True])
def test_a_message_holds_what_its_plan_announces(begins: bool, shares: bool) -> None:
    written, clients = downlink(client_weights="averaged", server_gradient="selected")
    clients.trained(2, 4, GRADIENTS)
    for client in (1, 2):
        plan, message = written.exchange(client, 0.1, upload=True, begins=begins, shares=shares)
        assert ExchangePlan.from_config(message.config) == plan
        assert len(message.parameters.tensors) == plan.weight_arrays + plan.gradient_arrays
        # Who gets weights gets no gradients: they are not of these weights.
        assert (plan.weight_arrays > 0) == (client == 1 or begins)
        assert (plan.gradient_arrays > 0) == (client == 2 and not begins)
        assert (plan.upload, plan.upload_weights, plan.finish) == (True, shares, False)
        assert plan.state_round == (4 if client == 2 else 0)


@pytest.mark.parametrize("per_round", [None, 7])
def test_a_finishing_message_brings_gradients_and_asks_for_weights(per_round: int | None) -> None:
    written, clients = downlink(
        client_weights="relayed", server_gradient="selected", iterations_per_round=per_round
    )
    clients.trained(2, 4, GRADIENTS)
    clients.trained(3, 4, [])
    for client in (2, 3):
        plan, _ = written.exchange(client, 0.1, upload=False, shares=True, finishes=True)
        assert (plan.finish, plan.iterations, plan.upload_weights) == (True, 0, True)
        assert (plan.weight_arrays, plan.gradient_arrays > 0) == (0, client == 2)


@pytest.mark.parametrize("inference", ["client", "server"])
@pytest.mark.parametrize("mask", ["soft", "none"])
def test_a_test_holds_what_its_plan_announces(inference: str, mask: str) -> None:
    written, clients = downlink(inference=inference, mask=mask)
    server = build_server(tiny_split().server, AdaSplitSettings(mask=mask), seed=0, folder=None)
    clients.trained(2, 4, [])
    messages = []
    for client in (2, 7, 8):
        plan, message = written.test(client, server)
        messages.append(message)
        assert TestPlan.from_config(message.config) == plan
        assert len(message.parameters.tensors) == plan.weight_arrays + plan.server_arrays
        assert (plan.upload, plan.server_arrays > 0) == (
            (True, False) if inference == "server" else (False, True)
        )
        assert (plan.weight_arrays > 0) == (client != 2)
    assert (messages[1] is messages[2]) == (inference == "server" or mask == "none")


def test_gradients_travel_in_float32() -> None:
    doubles = [(number, gradient.astype(np.float64)) for number, gradient in GRADIENTS]
    assert gradient_tensors(doubles, 5) == gradient_tensors(GRADIENTS, 5)
    with pytest.raises(PayloadError, match="batch 0: values are not finite"):
        gradient_tensors([(0, np.full((1, 5), 1e39))], 5)


def test_who_was_asked_what() -> None:
    members = [Member(Node(client), client) for client in (1, 2)]
    plan, _ = downlink()[0].exchange(1, 0.1, upload=False)
    asked = Asked(members, {1: plan})
    assert asked.plan_of(members[0]) is plan
    with pytest.raises(PayloadError, match="client 2, field round: a reply came, but it was not"):
        asked.plan_of(members[1])
    assert isinstance(asked.meter, Meter)
    assert asked.meter.of(1) == Traffic()
