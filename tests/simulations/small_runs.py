"""Small simulations for tests: the embedded digits, eight clients, three rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulations.recorder import Recorder
from simulations.runner import run
from simulations.settings import RunSettings
from tests.simulations.changed_settings import settings_with

SMALL = {
    "dataset": "digits",
    "num-clients": 8,
    "clients-per-round": 4,
    "rounds": 3,
    "model": "digits_cnn",
    "sparsity": 0.9,
    "learning-rate": 0.1,
    "backend": "in-process",
    "seed": 3,
}
MEASURED = ["train_seconds", "round_seconds", "server_seconds", "client_memory_mb"]
"""Columns that are never twice the same."""


def small(**changes: Any) -> RunSettings:
    """Settings of a small run; keyword arguments are keys with underscores."""
    return settings_with(SMALL, **changes)


def run_undrawn(settings: RunSettings, folder: Path) -> Path:
    """Run without plots, for fixtures of a module; tests take the fixture ``no_plots``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulations.recorder.write_plots", lambda folder: [])
        return run(settings, folder)


def arrays_of(path: Path) -> dict[str, bytes]:
    """Read an ``.npz`` file as names and exact bytes."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {
            name: bytes(str(stored[name].dtype), "ascii") + stored[name].tobytes()
            for name in stored.files
        }


def table_of(folder: Path, name: str) -> pd.DataFrame:
    """Read a table of a run as text, so that equal means equal in every digit."""
    table = pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False)
    return table.drop(columns=[column for column in MEASURED if column in table])


class Stopped(Exception):
    """The run was stopped on purpose."""


@contextmanager
def stopped_after(server_round: int) -> Iterator[None]:
    """Let runs stop at the end of a round, after its checkpoint if one is due."""
    whole = Recorder.finish_round

    def finish_and_stop(recorder: Recorder, number: int, *arguments: Any) -> None:
        whole(recorder, number, *arguments)
        if number == server_round:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "finish_round", finish_and_stop)
        yield
