"""Clients that the orchestrator has not picked for long: they come in the end, in their order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from adasplit_flwr.orchestrator import Orchestrator
from tests.adasplit_flwr.played_picks import play


@pytest.mark.parametrize("gamma", [0.3, 0.75, 0.97, 1.0])
def test_nobody_waits_forever(gamma: float) -> None:
    # Client 0 costs nothing to the server, and so has exploration alone to be picked again.
    history = play(Orchestrator(gamma), lambda client: 3.0 * client, range(5), 2, 600)
    for client in range(5):
        assert sum(client in picked for picked in history[300:]) > 1
    counts = Counter(client for picked in history for client in picked)
    assert counts[4] == max(counts.values())


@pytest.mark.parametrize("gamma", [1e-9, 0.3, 0.75])
@pytest.mark.parametrize("exchanges", [200, 5000])
def test_whoever_waits_longer_is_picked_however_long_both_have_waited(
    gamma: float, exchanges: int
) -> None:
    # With 1e-15 beside it, s_i says nothing more after some 120 exchanges; after 2600 it is below
    # the smallest float. The losses alone would then decide, for client 0.
    orchestrator = Orchestrator(gamma)
    orchestrator.pick([0, 1, 2], 3)
    for _ in range(60):
        orchestrator.update({0: 2.0, 1: 0.1, 2: 1.0})
    for _ in range(60):
        orchestrator.update({0: 2.0, 2: 1.0})
    for _ in range(exchanges):
        orchestrator.update({2: 1.0})
    assert orchestrator.pick([0, 1, 2], 1) == [1]
    assert orchestrator.pick([0, 1, 2], 2) == [0, 1]
    assert np.isfinite(orchestrator.terms([0, 1, 2]).scores).all()
    orchestrator.update({1: 0.1})
    assert orchestrator.pick([0, 1, 2], 1) == [0]


def test_scores_keep_growing_with_waiting() -> None:
    orchestrator = Orchestrator(0.75)
    orchestrator.pick([0, 1], 2)
    scores = []
    for _ in range(400):
        orchestrator.update({0: 1.0})
        scores.append(float(orchestrator.terms([1]).scores[0]))
    assert (np.diff(scores) > 0).all()
    # The sum of L's shares grows to 100 / (1 - .75) = 400, s_i shrinks to 1.75 * .75^400.
    assert scores[-1] == pytest.approx(400 / (1.75 * 0.75**400), rel=1e-9)
