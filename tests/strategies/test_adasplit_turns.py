"""Whose turn it is, and who uploads: drawn by seed, or in turn where weights go round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_options import Participation
from strategies.adasplit_turns import Relay, Turn, Turns
from strategies.cohort import Cohort
from strategies.metering import Meter
from tests.strategies.federation import Node, managed
from zerofl_flwr.errors import SettingsError


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


def goes_round(
    relay: Relay, availables: Sequence[Sequence[int]], picks: Sequence[int] | None = None
) -> list[tuple[int, bool]]:
    pick = None if picks is None else (lambda queue: [c for c in picks if c in queue])
    return [relay.next(available, pick) for available in availables]


def test_the_relay_goes_round_in_partition_order() -> None:
    turns = goes_round(Relay(), [[1, 4, 6]] * 7)
    assert [client for client, _ in turns] == [1, 4, 6, 1, 4, 6, 1]
    assert not any(uploads for _, uploads in turns)


def test_uploaders_are_picked_at_the_start_of_a_pass() -> None:
    asked: list[list[int]] = []

    def pick(queue: Sequence[int]) -> list[int]:
        asked.append(list(queue))
        return [queue[len(asked) % len(queue)]]

    relay = Relay()
    turns = [relay.next([0, 1, 2], pick) for _ in range(6)]
    assert asked == [[0, 1, 2]] * 2
    assert turns == [(0, False), (1, True), (2, False), (0, False), (1, False), (2, True)]


def test_a_global_phase_that_begins_within_a_pass_picks_among_the_rest() -> None:
    asked: list[list[int]] = []

    def pick(queue: Sequence[int]) -> list[int]:
        asked.append(list(queue))
        return list(queue)

    relay = Relay()
    assert goes_round(relay, [[0, 1, 2]]) == [(0, False)]
    assert [relay.next([0, 1, 2], pick) for _ in range(3)] == [(1, True), (2, True), (0, True)]
    assert asked == [[1, 2], [0, 1, 2]]


def test_who_leaves_is_passed_over_and_who_comes_waits_for_the_next_pass() -> None:
    relay = Relay()
    turns = goes_round(relay, [[0, 1, 2], [0, 2, 3], [0, 3], [0, 3], [5]], picks=[0, 2, 3])
    assert turns == [(0, True), (2, True), (0, True), (3, True), (5, False)]


@given(
    st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=30), st.integers(0, 20)
)
@settings(deadline=None, max_examples=50)
def test_the_relay_is_fair_whoever_comes_and_goes(
    availables: list[set[int]], local_rounds: int
) -> None:
    """Nobody who is away has a turn; who stays waits for a begun pass and its own at most."""
    relay, asked = Relay(), list[list[int]]()

    def pick(queue: Sequence[int]) -> list[int]:
        asked.append(list(queue))
        return list(queue[:1])

    seen: list[int] = []
    for number, available in enumerate(availables):
        client, uploads = relay.next(sorted(available), None if number < local_rounds else pick)
        assert client in available
        assert not (uploads and number < local_rounds)
        seen.append(client)
    longest_wait = 5 + 6  # the rest of a pass of six, and a pass of six
    for start in range(len(seen) - longest_wait + 1):
        window = slice(start, start + longest_wait)
        assert set.intersection(*availables[window]) <= set(seen[window])
    assert all(queue == sorted(queue) for queue in asked)


def test_a_whole_pass_of_failures_means_that_nobody_works() -> None:
    relay = Relay()
    relay.next([0, 1, 2], None)
    for misses, verdict in ((0, False), (2, False), (3, True)):
        relay.misses = misses
        assert relay.nobody_works is verdict


@pytest.mark.parametrize("picks", [None, [2]])
def test_a_relay_goes_on_from_its_state(picks: list[int] | None) -> None:
    relay, other = Relay(), Relay()
    before = goes_round(relay, [[0, 1, 2]] * 2, picks)
    relay.misses = 1
    state = relay.state_arrays()
    assert ("picks" in state) == (picks is not None)
    other.load_state_arrays(state)
    assert other.misses == 1
    assert goes_round(other, [[0, 1, 2]] * 4, picks) == goes_round(relay, [[0, 1, 2]] * 4, picks)
    assert [client for client, _ in before] == [0, 1]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"queue": np.zeros(1, np.int64)},
        {"counts": np.zeros(3, np.int64), "queue": np.zeros(1, np.int64)},
    ],
)
def test_something_else_is_no_state_of_a_relay(state: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="no state of AdaSplit's relay"):
        Relay().load_state_arrays(state)


def test_relayed_turns_have_one_metered_member() -> None:
    chosen = AdaSplitSettings(client_weights="relayed", kappa=0, eta=0.5)
    turns = Turns(chosen, Participation(9, 1, 1, 1, 1, 1), Orchestrator(seed=5), 5)
    manager, cohort = managed([Node(client) for client in (8, 3)]), Cohort(5)
    seen = []
    for server_round in range(1, 5):
        meter = Meter()
        turn = turns.next(cohort.at(manager, server_round, "fit", meter), server_round, "global")
        assert [member.meter for member in turn.members] == [meter]
        seen.append((*ids(turn), len(turn.picks)))
    assert [client for client, _ in seen] == [3, 8, 3, 8]
    assert sum(count for _, count in seen[:2]) == sum(count for _, count in seen[2:]) == 1
