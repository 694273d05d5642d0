"""Plays exchanges of an orchestrator against losses that depend on the client only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adasplit_flwr.orchestrator import Orchestrator


def play(
    orchestrator: Orchestrator,
    loss_of: Callable[[int], float],
    candidates: Sequence[int],
    count: int,
    steps: int,
) -> list[list[int]]:
    history = []
    for _ in range(steps):
        picked = orchestrator.pick(candidates, count)
        history.append(picked)
        orchestrator.update({client: loss_of(client) for client in picked})
    return history
