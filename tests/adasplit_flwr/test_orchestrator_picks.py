"""What the orchestrator picks, against picks told by its definition with whole histories alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from adasplit_flwr.orchestrator import Orchestrator

CLIENTS, BURN_IN, STEPS = 5, 60, 150
COUNTS = (1, 2, 3)
GAMMAS = (0.5, 0.75, 0.9)
CLOSE = 1e-7
"""Scores that differ by less than this, relatively, would be equal but for rounding."""


def losses_of(seed: int) -> NDArray[np.float64]:
    """Draw small losses, close to each other: a row an exchange, a column a client."""
    generator = np.random.default_rng(seed)
    own = generator.uniform(0.4, 0.6, CLIENTS)
    return own + generator.uniform(-0.05, 0.05, (BURN_IN + STEPS, CLIENTS))


def told_by_the_definition(
    losses: NDArray[np.float64], gamma: float, count: int, exploration: float = 1.0
) -> list[list[int]]:
    """Pick top k by ``A_i = l_i / s_i + sqrt(2 ln T / s_i)``, its second term times a factor.

    All are picked in the first exchanges, until the two start losses of 100 have faded.
    """
    histories = [[100.0, 100.0] for _ in range(CLIENTS)]
    chosen = [[1, 1] for _ in range(CLIENTS)]
    picks = []
    for step, row in enumerate(losses.tolist()):
        entries = 2 + step
        scores = []
        for history, marks in zip(histories, chosen, strict=True):
            discounts = [gamma ** (entries - 1 - t) for t in range(entries)]
            loss_sum = sum(d * loss for d, loss in zip(discounts, history, strict=True))
            pick_sum = sum(d * mark for d, mark in zip(discounts, marks, strict=True)) + 1e-15
            bonus = math.sqrt(2 * math.log(entries) / pick_sum)
            scores.append(loss_sum / pick_sum + exploration * bonus)
        best = sorted(range(CLIENTS), key=lambda client: -scores[client])
        if step < BURN_IN:
            picked = list(range(CLIENTS))
        else:
            picked = sorted(best[:count])
            last, next_one = scores[best[count - 1]], scores[best[count]]
            assert last - next_one > CLOSE * last, "a tie: the definition does not decide"
        picks.append(picked)
        for client, history in enumerate(histories):
            history.append(row[client] if client in picked else (history[-1] + history[-2]) / 2)
            chosen[client].append(int(client in picked))
    return picks[BURN_IN:]


def picked_by(
    orchestrator: Orchestrator, losses: NDArray[np.float64], count: int
) -> list[list[int]]:
    picks = []
    for step, row in enumerate(losses.tolist()):
        picked = orchestrator.pick(range(CLIENTS), CLIENTS if step < BURN_IN else count)
        picks.append(picked)
        orchestrator.update({client: row[client] for client in picked})
    return picks[BURN_IN:]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_picks_are_those_of_the_definition(gamma: float, count: int) -> None:
    losses = losses_of(seed=count)
    expected = told_by_the_definition(losses, gamma, count)
    assert picked_by(Orchestrator(gamma), losses, count) == expected
    assert len({tuple(picked) for picked in expected}) > 2


@pytest.mark.parametrize("factor", [0.1, 0.5, 0.8, 1.25, 2.0, 10.0])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_another_weight_of_exploration_would_pick_others(gamma: float, factor: float) -> None:
    """The losses above are such that the test above can tell."""
    losses = losses_of(seed=2)
    other = told_by_the_definition(losses, gamma, 2, exploration=factor)
    assert picked_by(Orchestrator(gamma), losses, 2) != other


def test_a_failed_pick_counts_as_picked_with_the_mean_of_its_last_losses() -> None:
    told, known = Orchestrator(gamma=0.5), Orchestrator(gamma=0.5)
    for each in (told, known):
        each.pick([0, 1, 2], 2)
        each.update({0: 3.0, 1: 7.0})
    told.update({2: 4.0}, failed=[0])
    known.update({2: 4.0, 0: (100.0 + 3.0) / 2})
    for name, array in told.state_arrays().items():
        assert np.array_equal(array, known.state_arrays()[name])
    told.update({}, failed=[1])
    assert told.exchanges == 3


def test_picks_are_the_first_of_the_ranking() -> None:
    orchestrator = Orchestrator(seed=3)
    clients = [4, 0, 7, 2, 9]
    for step in range(4):
        ranking = orchestrator.rank(clients)
        assert sorted(ranking) == sorted(clients)
        for count in range(1, 6):
            assert orchestrator.pick(clients, count) == sorted(ranking[:count])
        scores = orchestrator.terms(ranking).scores
        assert (np.diff(scores) <= 1e-9).all()
        orchestrator.update({ranking[0]: 1.0 + step, ranking[1]: 0.5})
