"""Simulated stragglers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from simulations.slow import parse_slow, slow_mod
from zerofl_flwr.errors import SettingsError


def test_factors_by_partition() -> None:
    assert parse_slow("0:2, 3:10,12:1.5") == {0: 2.0, 3: 10.0, 12: 1.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected PARTITION:FACTOR, not ''"),
        ("0", "expected PARTITION:FACTOR, not '0'"),
        ("0:2,", "expected PARTITION:FACTOR, not ''"),
        ("-1:2", "expected PARTITION:FACTOR, not '-1:2'"),
        ("a:2", "expected PARTITION:FACTOR, not 'a:2'"),
        ("0:fast", "the factor of partition 0 is 'fast'; it must be at least 1"),
        ("0:0.5", "the factor of partition 0 is '0.5'"),
        ("0:inf", "the factor of partition 0 is 'inf'"),
        ("0:nan", "the factor of partition 0 is 'nan'"),
        ("0:2,0:3", "names partition 0 twice"),
    ],
)
def test_what_is_no_factor_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_slow(text)


@pytest.mark.parametrize(
    ("partition", "kind", "slept"),
    [(3, "train", [4.5]), (3, "evaluate", []), (2, "train", [])],
)
def test_a_slow_client_takes_its_factor_of_time_for_training_alone(
    monkeypatch: pytest.MonkeyPatch, partition: int, kind: str, slept: list[float]
) -> None:
    reply: Any = object()
    message: Any = SimpleNamespace(metadata=SimpleNamespace(message_type=kind))
    context = Context(1, 1, {"partition-id": partition}, RecordDict(), {})
    clock = iter([10.0, 10.5])
    pauses: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert slow_mod({3: 10.0})(message, context, lambda *_: reply) is reply
    assert pauses == slept  # nine times the half second that it took
