"""What a client needs for its next exchange and for what that leads to, counted from its parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from adasplit_flwr import AdaSplitSettings
from strategies.adasplit_clients import KnownClients
from strategies.adasplit_needs import Needs
from strategies.adasplit_sharing import Sharing
from strategies.exchange_costs import Costs, ExchangeCosts, ForetoldExchange
from tests.strategies.adasplit_federation import CLASSES, CUT, FEATURES, tiny_split

EPOCH = (4, 4, 2)


class Case:
    """A client 0 that knows nothing yet."""

    def __init__(self, rounds: int = 9, **options: Any) -> None:
        settings = AdaSplitSettings(**{"kappa": 0.0, **options})
        self.costs = ExchangeCosts(tiny_split(), settings, (FEATURES,), CLASSES, "run")
        self.clients, self.sharing = KnownClients(), Sharing(settings, rounds)
        self.needs = Needs(
            self.costs, {0: EPOCH, 1: EPOCH}, settings, rounds, self.clients, self.sharing
        )

    def of(self, server_round: int, sizes: tuple[int, ...], **told: Any) -> Costs:
        return self.costs.of(ForetoldExchange(server_round, sizes, **told))


def gradients(*sizes: int) -> list[tuple[int, Any]]:
    return [(number, np.ones((size, CUT), np.float32)) for number, size in enumerate(sizes)]


def test_a_personal_part_needs_what_the_exchange_costs() -> None:
    case = Case()
    assert case.needs.need(0, 1, upload=True) == case.of(1, EPOCH, upload=True, begins=True)
    case.clients.trained(0, 1, [])
    assert case.needs.need(0, 2, upload=False) == case.of(2, EPOCH, state_round=1)
    assert case.needs.committed(2) == {}


def test_gradients_are_paid_for_when_they_are_earned() -> None:
    case = Case(server_gradient="selected", iterations_per_round=2)
    case.clients.trained(0, 1, [])
    case.needs.took(0)
    later = case.of(9, (4, 2), returned=(2, 4), state_round=8)
    assert case.needs.need(0, 3, upload=True) == (
        case.of(3, (2, 4), upload=True, state_round=1) + later
    )
    assert case.needs.need(0, 3, upload=False) == case.of(3, (2, 4), state_round=1)
    # In the last round nothing follows.
    assert case.needs.need(0, 9, upload=True) == case.of(9, (2, 4), upload=True, state_round=1)
    case.clients.trained(0, 3, gradients(2, 4))
    case.needs.took(0)
    assert case.needs.committed(4) == {0: later}
    assert case.needs.trains_without_upload(0)


def test_what_follows_counts_with_the_longest_numbers_of_rounds() -> None:
    case = Case(rounds=300, server_gradient="selected")
    later = case.of(300, EPOCH, returned=EPOCH, state_round=299)
    now = case.of(1, EPOCH, upload=True, begins=True)
    assert case.needs.need(0, 1, upload=True) == now + later
    assert later.bytes > case.of(300, EPOCH, returned=EPOCH, state_round=1).bytes
    assert later.bytes > case.of(2, EPOCH, returned=EPOCH, state_round=299).bytes


def test_a_client_that_lost_its_state_begins_with_the_first_batch() -> None:
    case = Case(iterations_per_round=2)
    case.clients.trained(0, 1, [])
    case.needs.took(0)
    case.needs.missed(0)
    assert case.needs.taken == {0: 2}
    case.clients.lost(0)
    case.needs.missed(0)
    assert case.needs.need(0, 2, upload=False) == case.of(2, (4, 4), begins=True)


def test_a_shared_part_needs_the_rest_of_its_period() -> None:
    case = Case(client_weights="averaged", share_every=3)
    assert case.needs.need(0, 1, upload=True) == (
        case.of(1, EPOCH, upload=True, begins=True)
        + case.of(9, EPOCH, state_round=8)
        + case.of(9, EPOCH, shares=True, state_round=8)
    )
    # From the last round but one a period has two rounds.
    assert case.needs.need(0, 8, upload=False) == (
        case.of(8, EPOCH, begins=True) + case.of(9, EPOCH, shares=True, state_round=8)
    )
    assert case.needs.need(0, 9, upload=False) == case.of(9, EPOCH, shares=True, begins=True)


def test_a_shared_part_needs_a_round_that_brings_the_last_gradients() -> None:
    case = Case(client_weights="averaged", share_every=2, server_gradient="selected")
    finish = case.of(9, (), shares=True, state_round=8)
    returning = case.of(9, EPOCH, returned=EPOCH, state_round=8)
    assert case.needs.need(0, 1, upload=True) == (
        case.of(1, EPOCH, upload=True, begins=True) + returning + finish
    )
    case.sharing.begin([0, 1])
    case.sharing.took({0: 10, 1: 10}, finished=False, shared=False, picks=[0])
    for client, waiting in ((0, gradients(*EPOCH)), (1, [])):
        case.clients.trained(client, 1, waiting)
        case.needs.took(client)
    assert case.needs.committed(2) == {
        0: case.of(2, EPOCH, returned=EPOCH, state_round=1) + finish,
        1: case.of(2, EPOCH, state_round=1) + finish,
    }
    case.sharing.took({0: 10, 1: 10}, finished=False, shared=False, picks=[])
    case.clients.trained(0, 2, gradients(*EPOCH))
    case.clients.trained(1, 2, [])
    assert case.needs.committed(3) == {
        0: case.of(3, (), shares=True, returned=EPOCH, state_round=2),
        1: case.of(3, (), shares=True, state_round=2),
    }


def test_who_uploads_nothing_is_ready_for_both_ends() -> None:
    case = Case(client_weights="averaged", share_every=3, server_gradient="selected")
    later, fetched = (case.of(9, EPOCH, shares=shares, state_round=8) for shares in (False, True))
    finish = case.of(9, (), shares=True, state_round=8)
    # Another client's gradients may come under way: then parts come up in a round of their own.
    need = case.needs.need(0, 1, upload=False)
    first = case.of(1, EPOCH, begins=True)
    waits, shares = first + later + later + finish, first + later + fetched
    assert waits.bytes > shares.bytes
    assert need == waits
    # In the last round but one that round takes the place of an exchange, which costs less.
    need = case.needs.need(0, 8, upload=False)
    first = case.of(8, EPOCH, begins=True)
    waits, shares = first + finish, first + fetched
    assert shares.client_ops > waits.client_ops
    assert need == Costs(max(waits.bytes, shares.bytes), shares.client_ops)
