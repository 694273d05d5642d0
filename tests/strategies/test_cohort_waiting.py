"""A cohort waits for nodes, tells so, and gives up in the end."""

from __future__ import annotations

import threading

import pytest

from strategies import cohort as cohort_module
from strategies.cohort import Cohort
from tests.strategies.federation import Node, managed, partition_of
from zerofl_flwr.errors import RoundFailedError


def test_a_long_wait_is_told(
    monkeypatch: pytest.MonkeyPatch, flower_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cohort_module, "_TELL_EVERY_SECONDS", 0.05)
    cohort = Cohort(0).at(managed([Node(0)]), 1, "fit")
    assert not cohort.wait_for(3, timeout=1)
    assert "waiting for 3 nodes, 1 are there" in flower_log.text


def test_waits_for_nodes_that_come_late() -> None:
    manager = managed([Node(0)])
    timer = threading.Timer(0.15, lambda: manager.register(Node(1)))
    timer.start()
    try:
        cohort = Cohort(0, min_available=2).at(manager, 1, "fit")
    finally:
        timer.join()
    assert [partition_of(member) for member in cohort.members()] == [0, 1]
    assert cohort.wait_for(2, timeout=0)
    assert not cohort.wait_for(3, timeout=0)


def test_a_sample_waits_for_its_least_number() -> None:
    manager = managed([Node(0)])
    cohort = Cohort(0).at(manager, 1, "fit")
    timer = threading.Timer(0.15, lambda: manager.register(Node(1)))
    timer.start()
    try:
        assert [partition_of(member) for member in cohort.sample(2)] == [0, 1]
    finally:
        timer.join()


def test_patience_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort_module, "_PATIENCE_SECONDS", 0)
    with pytest.raises(RoundFailedError, match=r"round 4: 2 nodes are needed, 1 came"):
        Cohort(0, min_available=2).at(managed([Node(0)]), 4, "fit")
