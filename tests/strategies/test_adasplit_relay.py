"""Where client parts go round, everybody has a turn, and uploaders are picked for a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.adasplit_relay import Relay
from zerofl_flwr.errors import SettingsError


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


def test_a_turn_that_goes_on_uploads_as_its_pass_was_picked() -> None:
    relay, asked = Relay(), list[list[int]]()

    def pick(queue: Sequence[int]) -> list[int]:
        asked.append(list(queue))
        return [2]

    assert relay.next([0, 1, 2], None) == (0, False)
    assert relay.next([0, 1, 2], None) == (1, False)
    assert relay.goes_on(1, [0, 1, 2], None) is False
    assert relay.goes_on(1, [0, 1, 2], pick) is False  # the global phase begins
    assert asked == [[1, 2]]
    assert relay.next([0, 1, 2], pick) == (2, True)
    assert relay.goes_on(2, [0, 1, 2], pick) is True
    assert asked == [[1, 2]]


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


def test_the_order_is_that_of_the_pass_and_then_of_another() -> None:
    relay = Relay()
    assert relay.order([0, 1, 2, 3]) == [0, 1, 2, 3]
    relay.next([0, 1, 2, 3], None)
    assert relay.order([0, 1, 2, 3]) == [1, 2, 3, 0]
    assert relay.order([0, 3, 5]) == [3, 0, 5]
