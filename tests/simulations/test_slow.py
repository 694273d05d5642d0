"""Simulated stragglers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import (
    Code,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat as compat

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


def reply_with(metrics: dict[str, Any]) -> Any:
    parameters = ndarrays_to_parameters([np.arange(3.0, dtype=np.float32)])
    result = FitRes(Status(Code.OK, "Success"), parameters, 7, metrics)
    content = compat.fitres_to_recorddict(result, keep_input=True)
    return SimpleNamespace(content=content, has_error=lambda: False)


def answer(
    monkeypatch: pytest.MonkeyPatch, partition: int, kind: str, reply: Any
) -> tuple[Any, list[float]]:
    """Let partition 3 be ten times as slow; answering takes half a second."""
    message: Any = SimpleNamespace(metadata=SimpleNamespace(message_type=kind))
    context = Context(1, 1, {"partition-id": partition}, RecordDict(), {})
    clock = iter([10.0, 10.5])
    pauses: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", pauses.append)
    return slow_mod({3: 10.0})(message, context, lambda *_: reply), pauses


@pytest.mark.parametrize(("partition", "kind"), [(3, "evaluate"), (2, "train")])
def test_other_messages_and_other_clients_take_no_longer(
    monkeypatch: pytest.MonkeyPatch, partition: int, kind: str
) -> None:
    reply: Any = object()
    answered, pauses = answer(monkeypatch, partition, kind, reply)
    assert answered is reply
    assert pauses == []


def test_a_slow_client_takes_its_factor_of_time_for_training_and_tells_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply = reply_with({"train_loss": 0.5, "train_seconds": 0.25, "round": 2})
    answered, pauses = answer(monkeypatch, 3, "train", reply)
    assert pauses == [4.5]  # nine times the half second that it took
    result = compat.recorddict_to_fitres(answered.content, keep_input=True)
    assert result.metrics == {"train_loss": 0.5, "train_seconds": 4.75, "round": 2}
    assert result.num_examples == 7
    assert result.status.code == Code.OK
    assert parameters_to_ndarrays(result.parameters)[0].tolist() == [0.0, 1.0, 2.0]


def test_a_client_that_tells_no_seconds_tells_none_when_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered, pauses = answer(monkeypatch, 3, "train", reply_with({"train_loss": 0.5}))
    assert pauses == [4.5]
    result = compat.recorddict_to_fitres(answered.content, keep_input=True)
    assert result.metrics == {"train_loss": 0.5}


def test_an_error_of_a_slow_client_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error: Any = SimpleNamespace(has_error=lambda: True)
    answered, pauses = answer(monkeypatch, 3, "train", error)
    assert answered is error
    assert pauses == [4.5]
