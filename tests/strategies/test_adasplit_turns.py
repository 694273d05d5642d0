"""Whose turn it is, and who uploads: drawn by seed, or in turn where weights go round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_options import Participation
from strategies.adasplit_turns import Turn, Turns
from strategies.cohort import Cohort
from strategies.metering import Meter
from tests.strategies.federation import Node, managed


def ids(turn: Turn) -> list[int]:
    return [member.partition_id for member in turn.members]


def turn_of(
    clients: Sequence[int], server_round: int = 1, phase: str = "global", **options: Any
) -> Turn:
    fraction_fit = options.pop("fraction_fit", 1.0)
    chosen = AdaSplitSettings(**options)
    participation = Participation(9, fraction_fit, 1, 1, 1, 1.0)
    turns = Turns(chosen, participation, Orchestrator(seed=5), 5)
    manager = managed([Node(client) for client in clients])
    return turns.next(Cohort(5).at(manager, server_round, "fit", Meter()), server_round, phase)


def test_everybody_trains_and_none_uploads_in_the_local_phase() -> None:
    turn = turn_of([4, 1, 7], phase="local")
    assert (turn.phase, ids(turn), turn.picks) == ("local", [1, 4, 7], frozenset())
    assert all(math.isnan(term) for term in turn.terms_of(4))
    assert all(member.meter is not None for member in turn.members)


@pytest.mark.parametrize(("eta", "count"), [(0.1, 1), (0.25, 3), (0.5, 5), (1.0, 10)])
@pytest.mark.parametrize("selection", ["ucb", "random"])
def test_eta_of_those_who_train_upload(eta: float, count: int, selection: str) -> None:
    turn = turn_of(range(20), fraction_fit=0.5, eta=eta, selection=selection)
    assert len(turn.members) == 10
    assert len(turn.picks) == count
    assert turn.picks <= set(ids(turn))


def test_random_picks_are_those_of_the_round() -> None:
    turns = [turn_of(range(8), number, selection="random", eta=0.5) for number in (1, 2, 3)]
    again = [turn_of(range(8), number, selection="random", eta=0.5) for number in (1, 2, 3)]
    assert [turn.picks for turn in turns] == [turn.picks for turn in again]
    expected = np.random.default_rng((5, 4, 2)).choice(np.arange(8), size=4, replace=False)
    assert turns[1].picks == set(expected.tolist())
    assert len({turn.picks for turn in turns}) > 1


def test_the_terms_are_those_before_the_round() -> None:
    turn = turn_of([0, 2])
    for client in (0, 2):
        assert turn.terms_of(client) == pytest.approx((100.0, math.sqrt(2 * math.log(2) / 1.75)))
    assert all(math.isnan(term) for client in (1, None) for term in turn.terms_of(client))


def played(
    clients: Sequence[int], rounds: int, gone: Mapping[int, int] | None = None, **options: Any
) -> list[Turn]:
    """Let everybody reply to each turn with ten samples; some clients leave before a round."""
    participation = Participation(rounds, options.pop("fraction_fit", 1.0), 1, 1, 1, 1.0)
    turns = Turns(AdaSplitSettings(**options), participation, Orchestrator(seed=5), 5)
    manager, cohort, sharing = (
        managed([Node(client) for client in clients]),
        Cohort(5),
        turns.sharing,
    )
    seen = []
    for server_round in range(1, rounds + 1):
        for client in [c for c, left in (gone or {}).items() if left == server_round]:
            manager.unregister(manager.clients[str(client)])
        meter = Meter()
        phase = turns._settings.phase_of(server_round, rounds)
        turn = turns.next(cohort.at(manager, server_round, "fit", meter), server_round, phase)
        assert all(member.meter is meter for member in turn.members)
        sharing.took(
            dict.fromkeys(ids(turn), 10),
            finished=turn.finishes,
            shared=turn.shares,
            picks=list(turn.picks),
        )
        if sharing.is_over:
            sharing.begin()
        seen.append(turn)
    return seen


def told(turns: Sequence[Turn]) -> list[str]:
    """Word each turn: phase, members, who is sent the shared part, whether all upload theirs."""
    return [
        f"{turn.phase} {ids(turn)} begins {sorted(turn.begins)}" + " shares" * turn.shares
        for turn in turns
    ]


def test_relayed_turns_have_one_member() -> None:
    turns = played([8, 3], 4, client_weights="relayed", kappa=0.0, eta=0.5)
    assert [ids(turn) for turn in turns] == [[3], [8], [3], [8]]
    assert sum(len(turn.picks) for turn in turns[:2]) == 1
    assert sum(len(turn.picks) for turn in turns[2:]) == 1


def test_personal_parts_begin_and_share_never() -> None:
    turns = played([1, 2], 3, kappa=0.0, server_gradient="selected")
    assert told(turns) == ["global [1, 2] begins []"] * 3


@pytest.mark.parametrize("weights", ["averaged", "relayed"])
def test_without_gradients_parts_come_up_with_the_last_exchange(weights: str) -> None:
    turns = played([3], 6, client_weights=weights, share_every=3, kappa=0.4)
    one = ["local [3] begins [3]", "local [3] begins []", "global [3] begins [] shares"]
    assert told(turns) == [*one, *(text.replace("local", "global") for text in one)]


@pytest.mark.parametrize("weights", ["averaged", "relayed"])
def test_with_gradients_a_finishing_round_comes_before_parts_are_shared(weights: str) -> None:
    turns = played(
        [3], 8, client_weights=weights, share_every=3, server_gradient="selected", kappa=0
    )
    one = ["global [3] begins [3]", "global [3] begins []", "global [3] begins []"]
    assert told(turns) == [*one, "finish [3] begins [] shares"] * 2
    assert [len(turn.picks) for turn in turns] == [1, 1, 1, 0] * 2
    assert not turns[3].terms
    assert all(turns[number].terms for number in (0, 1, 2, 4))


def test_exchanges_of_the_local_phase_have_no_gradients_to_wait_for() -> None:
    turns = played(
        [3, 4], 6, client_weights="averaged", share_every=2, server_gradient="selected", kappa=0.4
    )
    assert told(turns) == [
        "local [3, 4] begins [3, 4]",
        "local [3, 4] begins [] shares",
        "global [3, 4] begins [3, 4]",
        "global [3, 4] begins []",
        "finish [3, 4] begins [] shares",
        # The last round shares what there is, although a gradient would follow.
        "global [3, 4] begins [3, 4] shares",
    ]


def test_the_last_round_ends_a_period_early() -> None:
    turns = played(
        [3], 6, client_weights="relayed", share_every=3, server_gradient="selected", kappa=0
    )
    assert [turn.phase for turn in turns] == ["global"] * 3 + ["finish", "global", "finish"]
    without = played([3], 4, client_weights="relayed", share_every=3, kappa=0)
    assert [turn.shares for turn in without] == [False, False, True, True]


def test_a_client_has_its_exchanges_before_the_next_in_turn() -> None:
    turns = played(
        [1, 4],
        12,
        client_weights="relayed",
        share_every=2,
        server_gradient="selected",
        kappa=0,
        selection="all",
    )
    assert [ids(turn) for turn in turns] == [[1]] * 3 + [[4]] * 3 + [[1]] * 3 + [[4]] * 3


def test_who_does_not_upload_in_a_pass_has_nothing_to_finish() -> None:
    turns = played(
        [1, 4],
        10,
        client_weights="relayed",
        share_every=2,
        server_gradient="selected",
        kappa=0,
        eta=0.5,
    )
    (uploader,) = {client for turn in turns[:5] for client in turn.picks}
    for client in (1, 4):
        own = [turn for turn in turns[:5] if ids(turn) == [client]]
        more = client == uploader
        assert [turn.phase for turn in own] == ["global", "global"] + ["finish"] * more
        assert [turn.shares for turn in own] == [False] * (1 + more) + [True]


def test_a_turn_in_which_the_global_phase_begins_uploads_from_then_on() -> None:
    turns = played([1, 4], 8, client_weights="relayed", share_every=4, kappa=0.25, selection="all")
    assert [(turn.phase, ids(turn), sorted(turn.picks)) for turn in turns] == [
        ("local", [1], []),
        ("local", [1], []),
        ("global", [1], [1]),
        ("global", [1], [1]),
        *[("global", [4], [4])] * 4,
    ]


def test_those_who_were_drawn_stay_until_parts_are_shared() -> None:
    turns = played(
        range(8),
        9,
        client_weights="averaged",
        share_every=2,
        server_gradient="selected",
        kappa=0,
        fraction_fit=0.5,
    )
    drawn = [ids(turn) for turn in turns]
    for start in (0, 3, 6):
        assert drawn[start] == drawn[start + 1] == drawn[start + 2]
        # They are those that this round draws without shared parts too.
        assert drawn[start] == ids(turn_of(range(8), start + 1, fraction_fit=0.5))
    assert drawn[0] != drawn[3]


def test_who_leaves_is_left_out_and_a_period_without_anybody_ends() -> None:
    averaged: dict[str, Any] = {"client_weights": "averaged", "share_every": 2, "kappa": 0}
    turns = played([1, 2, 5], 4, {2: 2}, server_gradient="selected", **averaged)
    assert [ids(turn) for turn in turns] == [[1, 2, 5], [1, 5], [1, 5], [1, 5]]
    relayed: dict[str, Any] = {**averaged, "client_weights": "relayed", "selection": "all"}
    turns = played([1, 2], 6, {1: 2}, server_gradient="selected", **relayed)
    assert told(turns)[:4] == [
        "global [1] begins [1]",
        "global [2] begins [2]",
        "global [2] begins []",
        "finish [2] begins [] shares",
    ]
    turns = played([1, 2], 6, {1: 3}, server_gradient="selected", **relayed)  # when it is to finish
    assert [turn.phase for turn in turns] == ["global"] * 4 + ["finish", "global"]
    assert [ids(turn) for turn in turns] == [[1]] * 2 + [[2]] * 4


def test_who_leaves_while_a_period_goes_on_takes_nobody_along() -> None:
    chosen = AdaSplitSettings(client_weights="averaged", share_every=3, kappa=0)
    turns = Turns(chosen, Participation(9, 1.0, 1, 1, 1, 1.0), Orchestrator(seed=5), 5)
    manager, cohort = managed([Node(client) for client in (1, 2, 5)]), Cohort(5)
    first = turns.next(cohort.at(manager, 1, "fit", Meter()), 1, "global")
    turns.sharing.took(dict.fromkeys(ids(first), 10), finished=False, shared=False, picks=[1])
    there = cohort.at(manager, 2, "fit", Meter())
    manager.unregister(manager.clients["2"])  # after the round has begun
    second = turns.next(there, 2, "global")
    assert (ids(second), second.begins) == ([1, 5], frozenset())
