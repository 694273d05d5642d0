"""TensorBoard scalars, read back with TensorBoard's own reader."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from simulations.runner import run
from simulations.tensorboard import check_tensorboard, write_scalars
from tests.simulations.small_runs import small
from zerofl_flwr.errors import SettingsError


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_figures_come_back_and_nan_does_not(tmp_path: Path) -> None:
    write_scalars(tmp_path, {"round": 3, "accuracy": 0.5, "loss": math.nan, "failures": 2})
    events = read(tmp_path)
    assert set(events.Tags()["scalars"]) == {"accuracy", "failures"}
    assert [(e.step, e.value) for e in events.Scalars("accuracy")] == [(3, 0.5)]


def test_a_round_that_is_repeated_after_a_resume_replaces_its_first_try(tmp_path: Path) -> None:
    write_scalars(tmp_path, {"round": 1, "accuracy": 0.25})
    write_scalars(tmp_path, {"round": 2, "accuracy": 0.5})
    write_scalars(tmp_path, {"round": 2, "accuracy": 0.75})
    found = [(e.step, e.value) for e in read(tmp_path).Scalars("accuracy")]
    assert found == [(1, 0.25), (2, 0.75)]


def test_a_run_writes_every_round(tmp_path: Path) -> None:
    settings = small()
    settings = replace(settings, simulation=replace(settings.simulation, tensorboard=True))
    folder = run(settings, tmp_path / "run")
    rounds = pd.read_csv(folder / "rounds.csv")
    accuracy = read(folder / "tensorboard").Scalars("accuracy")
    assert [event.step for event in accuracy] == [1, 2, 3]
    assert [event.value for event in accuracy] == pytest.approx(rounds["accuracy"].tolist()[1:])


def test_a_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'lean-flwr\[tensorboard\]'"):
        check_tensorboard()
