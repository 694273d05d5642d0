"""The bandit that picks clients: by hand, against its definition, and over long histories."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr.orchestrator import Orchestrator
from tests.adasplit_flwr.played_picks import play
from zerofl_flwr.errors import RoundFailedError, SettingsError


class Slow:
    """The definition as it is written: whole histories and whole sums."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.entries = 2
        self.losses: dict[int, list[float]] = {}
        self.picks: dict[int, list[int]] = {}

    def add(self, client: int) -> None:
        self.losses.setdefault(client, [100.0, 100.0])
        self.picks.setdefault(client, [1, 1])

    def update(self, losses: Mapping[int, float]) -> None:
        for client, history in self.losses.items():
            picked = client in losses
            history.append(losses[client] if picked else (history[-1] + history[-2]) / 2)
            self.picks[client].append(int(picked))
        self.entries += 1

    def terms(self, client: int) -> tuple[float, float]:
        losses, picks = self.losses[client], self.picks[client]
        # A late client's entries are the last ones: its newest also has the exponent 0.
        newest = len(losses) - 1
        loss_sum = sum(self.gamma ** (newest - t) * loss for t, loss in enumerate(losses))
        pick_sum = sum(self.gamma ** (newest - t) * pick for t, pick in enumerate(picks))
        return loss_sum / pick_sum, math.sqrt(2 * math.log(self.entries) / pick_sum)


def picks_now(state: Mapping[str, Any], gamma: float) -> list[float]:
    sums: list[float] = (state["pick-sums"] * gamma ** state["waits"]).tolist()
    return sums


# Three clients, gamma = 1/2. At the start l = 100 / 2 + 100 = 150 and s = 1 / 2 + 1 = 1.5 for all.
# Each row: who is picked with which loss, and after it L, l = l / 2 + L and s = s / 2 + S of the
# clients 0, 1, 2. E.g. the second row: only client 2 is picked, and client 0 gets the mean of its
# last two, (100 + 3) / 2 = 51.5; l = 78 / 2 + 51.5 = 90.5 and s = 1.75 / 2 = 0.875.
BY_HAND: list[tuple[dict[int, float], list[float], list[float], list[float]]] = [
    ({0: 3, 1: 1, 2: 6}, [3, 1, 6], [78, 76, 81], [1.75, 1.75, 1.75]),
    ({2: 4}, [51.5, 50.5, 4], [90.5, 88.5, 44.5], [0.875, 0.875, 1.875]),
    ({0: 2}, [2, 25.75, 5], [47.25, 70, 27.25], [1.4375, 0.4375, 0.9375]),
    ({1: 1}, [26.75, 1, 4.5], [50.375, 36, 18.125], [0.71875, 1.21875, 0.46875]),
    ({0: 2}, [2, 13.375, 4.75], [27.1875, 31.375, 13.8125], [1.359375, 0.609375, 0.234375]),
    (
        {2: 4},
        [14.375, 7.1875, 4],
        [27.96875, 22.875, 10.90625],
        [0.6796875, 0.3046875, 1.1171875],
    ),
    (
        {1: 1},
        [8.1875, 1, 4.375],
        [22.171875, 12.4375, 9.828125],
        [0.33984375, 1.15234375, 0.55859375],
    ),
    (
        {0: 2},
        [2, 4.09375, 4.1875],
        [13.0859375, 10.3125, 9.1015625],
        [1.169921875, 0.576171875, 0.279296875],
    ),
    (
        {2: 4},
        [5.09375, 2.546875, 4],
        [11.63671875, 7.703125, 8.55078125],
        [0.5849609375, 0.2880859375, 1.1396484375],
    ),
    (
        {1: 1},
        [3.546875, 1, 4.09375],
        [9.365234375, 4.8515625, 8.369140625],
        [0.29248046875, 1.14404296875, 0.56982421875],
    ),
]
# l / s + sqrt(2 ln T / s) to six digits after the rows 1, 2 and 10, where T is 3, 4 and 12: e.g.
# 78 / 1.75 + sqrt(2 * 1.0986123 / 1.75) = 44.571429 + 1.120516.
SCORES_BY_HAND = {
    1: [45.691945, 44.549088, 47.406231],
    2: [105.208648, 102.922934, 24.949357],
    10: [36.142163, 6.324963, 17.640478],
}


def test_ten_steps_by_hand() -> None:
    orchestrator, slow = Orchestrator(0.5), Slow(0.5)
    for client in (0, 1, 2):
        slow.add(client)
    for step, (losses, last, loss_sums, pick_sums) in enumerate(BY_HAND, start=1):
        assert orchestrator.pick([0, 1, 2], len(losses)) == list(losses)
        orchestrator.update(losses)
        slow.update(losses)
        state = orchestrator.state_arrays()
        assert state["entries"] == 2 + step
        assert state["last-losses"][:, 1].tolist() == last
        assert state["loss-sums"].tolist() == loss_sums
        assert picks_now(state, 0.5) == pick_sums
        terms = orchestrator.terms([0, 1, 2])
        assert terms.exploitation == pytest.approx([slow.terms(i)[0] for i in range(3)], rel=1e-14)
        assert terms.exploration == pytest.approx([slow.terms(i)[1] for i in range(3)], rel=1e-14)
        if step in SCORES_BY_HAND:
            assert terms.scores == pytest.approx(SCORES_BY_HAND[step], abs=5e-7)
    assert orchestrator.exchanges == 10


def test_everybody_starts_equal() -> None:
    orchestrator = Orchestrator(0.75)
    orchestrator.pick([4, 9], 1)
    terms = orchestrator.terms([4, 9])
    assert terms.exploitation == pytest.approx([100, 100], rel=1e-14)
    # 2 ln 2 = 1.3862944 and s = 1.75: the root of 0.7921682.
    assert terms.exploration == pytest.approx([0.8900383, 0.8900383], abs=1e-7)
    assert orchestrator.exchanges == 0


@given(data=st.data(), gamma=st.floats(0.05, 1))
@settings(deadline=None, max_examples=60)
def test_the_recursion_is_the_definition(data: st.DataObject, gamma: float) -> None:
    orchestrator, slow = Orchestrator(gamma), Slow(gamma)
    known = set(data.draw(st.sets(st.integers(0, 30), min_size=1, max_size=5)))
    for _ in range(data.draw(st.integers(1, 25))):
        known |= data.draw(st.sets(st.integers(0, 30), max_size=1))
        candidates = data.draw(st.permutations(sorted(known)))
        orchestrator.pick(candidates, 1)
        for client in candidates:
            slow.add(client)
        picked = data.draw(st.sets(st.sampled_from(candidates), min_size=1))
        losses = {client: data.draw(st.floats(0, 1e6)) for client in sorted(picked)}
        orchestrator.update(losses)
        slow.update(losses)
    terms = orchestrator.terms(candidates)
    expected = np.array([slow.terms(client) for client in candidates])
    np.testing.assert_allclose(terms.exploitation, expected[:, 0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(terms.exploration, expected[:, 1], rtol=1e-9)
    np.testing.assert_array_equal(terms.scores, terms.exploitation + terms.exploration)


@given(
    gamma=st.floats(0.05, 1),
    clients=st.integers(2, 12),
    seed=st.integers(0, 2**32),
    losses=st.lists(st.floats(0, 99), min_size=12, max_size=12),
    data=st.data(),
)
@settings(deadline=None, max_examples=100)
def test_all_are_picked_once_before_any_is_picked_twice(
    gamma: float, clients: int, seed: int, losses: list[float], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, clients))
    steps = clients // count
    history = play(Orchestrator(gamma, seed=seed), losses.__getitem__, range(clients), count, steps)
    picked = [client for step in history for client in step]
    assert len(set(picked)) == len(picked) == count * steps


def test_of_two_with_equal_counts_the_costlier_is_picked() -> None:
    orchestrator = Orchestrator()
    orchestrator.pick([3, 5, 8], 3)
    orchestrator.update({3: 0.1, 5: 2.0, 8: 0.7})
    assert orchestrator.pick([8, 3, 5], 1) == [5]
    assert orchestrator.pick([8, 3], 1) == [8]
    assert orchestrator.pick([3, 5, 8], 2) == [5, 8]


def test_ties_are_drawn_about_equally_often() -> None:
    counts = Counter(
        client for seed in range(1500) for client in Orchestrator(seed=seed).pick(range(5), 2)
    )
    # Each of five is expected 600 times of 1500; the standard deviation is 19.
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(abs(count - 600) < 95 for count in counts.values())


def test_ties_only_decide_between_equals() -> None:
    picks = set()
    for seed in range(40):
        orchestrator = Orchestrator(seed=seed)
        orchestrator.pick(range(4), 4)
        orchestrator.update({0: 1.0, 1: 9.0, 2: 1.0, 3: 1.0})
        picks.add(tuple(orchestrator.pick(range(4), 2)))
    assert picks == {(0, 1), (1, 2), (1, 3)}


def test_ties_fall_differently_in_each_exchange() -> None:
    history = play(Orchestrator(seed=7), lambda client: 1.0, range(6), 6, 1)
    orchestrator = Orchestrator(seed=7)
    for _ in range(12):
        history.append(orchestrator.pick(range(6), 1))
        orchestrator.pick(range(6), 6)
        orchestrator.update(dict.fromkeys(range(6), 1.0))
    assert len({tuple(picked) for picked in history[1:]}) > 2


@given(seed=st.integers(0, 2**64), order=st.permutations(range(7)), steps=st.integers(0, 6))
@settings(deadline=None, max_examples=60)
def test_the_order_of_candidates_and_earlier_asking_do_not_matter(
    seed: int, order: list[int], steps: int
) -> None:
    first, second = Orchestrator(seed=seed), Orchestrator(seed=seed)
    history = play(first, lambda client: 1.0, range(7), 3, steps)
    for picked in history:
        second.pick(order[:4], 1)
        assert second.pick(order, 3) == picked
        second.update(dict.fromkeys(reversed(picked), 1.0))
    assert first.pick(range(7), 3) == second.pick(order, 3)
    assert first.pick(np.arange(7).tolist(), 3) == first.pick(range(7), 3)


def test_the_global_generator_is_left_alone() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    play(Orchestrator(), lambda client: 1.0, range(5), 2, 5)
    after = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    assert before == after


def test_a_late_client_starts_with_two_entries_and_the_common_time() -> None:
    orchestrator = Orchestrator(0.5)
    orchestrator.pick([0, 7], 2)
    for _ in range(3):
        orchestrator.update({0: 1.0, 7: 1.0})
    assert orchestrator.pick([7, 3, 0], 1) == [3]
    terms = orchestrator.terms([3])
    assert terms.exploitation == pytest.approx([100], rel=1e-14)
    # T = 2 + 3, s = 1.5: the root of 2 ln 5 / 1.5 = 2.1459172.
    assert terms.exploration == pytest.approx([1.4648950], abs=1e-7)
    orchestrator.update({3: 2.0})
    state = orchestrator.state_arrays()
    assert state["ids"].tolist() == [0, 3, 7]
    # 150 / 2 + 2, beside 0.5 * (0.5 * (0.5 * 150 + 1) + 1) ... of those that were there before.
    assert state["loss-sums"].tolist() == [11.25, 77, 11.25]
    assert picks_now(state, 0.5) == [0.96875, 1.75, 0.96875]
    assert state["entries"] == 6


def test_who_is_no_candidate_waits_like_the_others() -> None:
    orchestrator = Orchestrator(0.5)
    orchestrator.pick([1, 2], 1)
    orchestrator.update({1: 4.0, 2: 4.0})
    orchestrator.pick([1], 1)
    orchestrator.update({1: 4.0})
    state = orchestrator.state_arrays()
    assert state["last-losses"].tolist() == [[4, 4], [4, 52]]
    assert picks_now(state, 0.5) == [1.875, 0.875]
    assert state["waits"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("candidates", "count", "message"),
    [
        ([1, 2, 1], 1, r"client ids occur twice in \[1, 1, 2\]"),
        ([1, -2], 1, "whole numbers from 0"),
        ([1.5, 2], 1, "whole numbers from 0"),
        (["a"], 1, "whole numbers from 0"),
        ([2**70], 1, "whole numbers from 0"),
        ([True, False], 1, "whole numbers from 0"),
        ([1, 2], 0, "count is 0; there are 2 candidates"),
        ([1, 2], 3, "count is 3; there are 2 candidates"),
        ([1, 2], -1, "count is -1"),
        ([1, 2], 1.0, r"count is 1\.0"),
        ([1, 2], True, "count is True"),
        ([], 1, "there are 0 candidates"),
    ],
)
def test_bad_candidates_are_refused_and_not_remembered(
    candidates: Any, count: Any, message: str
) -> None:
    orchestrator = Orchestrator()
    with pytest.raises(SettingsError, match=message):
        orchestrator.pick(candidates, count)
    assert orchestrator.state_arrays()["ids"].tolist() == []


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        ({}, SettingsError, "at least one picked client"),
        ({0: 1.0, 5: 1.0}, SettingsError, r"clients \[5\] are not known"),
        ({0: math.nan, 1: 1.0}, RoundFailedError, "loss for client 0 is nan; expected a finite"),
        ({0: 1.0, 1: math.inf}, RoundFailedError, "client 1 is inf"),
        ({1: -math.inf}, RoundFailedError, "client 1 is -inf"),
        ({1: -0.5}, RoundFailedError, r"client 1 is -0\.5"),
        ({1: 1e39}, RoundFailedError, r"client 1 is 1e\+39"),
    ],
)
def test_a_bad_exchange_changes_nothing(
    losses: dict[int, float], error: type[Exception], message: str
) -> None:
    orchestrator = Orchestrator()
    play(orchestrator, lambda client: 1.0, [0, 1, 2], 2, 3)
    before = {name: array.tolist() for name, array in orchestrator.state_arrays().items()}
    with pytest.raises(error, match=message):
        orchestrator.update(losses)
    after = {name: array.tolist() for name, array in orchestrator.state_arrays().items()}
    assert after == before


def test_the_largest_losses_do_not_overflow() -> None:
    orchestrator = Orchestrator(1.0)
    play(orchestrator, lambda client: 3.4e38, range(3), 1, 50)
    assert np.isfinite(orchestrator.terms(range(3)).scores).all()


def test_terms_of_unknown_clients_are_refused() -> None:
    orchestrator = Orchestrator()
    orchestrator.pick([1, 2], 1)
    with pytest.raises(SettingsError, match=r"clients \[3, 4\] are not known here"):
        orchestrator.terms([4, 1, 3])
    assert orchestrator.terms([2, 1]).exploitation.shape == (2,)


@pytest.mark.parametrize("gamma", [0, -0.5, 1.01, math.nan, math.inf])
def test_a_bad_gamma_is_refused(gamma: float) -> None:
    with pytest.raises(SettingsError, match=r"gamma is .*; it must be above 0 and at most 1"):
        Orchestrator(gamma)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_bad_seed_is_refused(seed: Any) -> None:
    with pytest.raises(SettingsError, match=r"seed is .*; it must be a whole number from 0"):
        Orchestrator(seed=seed)
