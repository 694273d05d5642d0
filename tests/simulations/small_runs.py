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
from simulations.settings import RunSettings

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
MEASURED = ["train_seconds", "round_seconds", "client_memory_mb"]  # never twice the same
TABLES = ("rounds", "clients", "traffic", "layers", "partitions")


def small(**changes: Any) -> RunSettings:
    """Settings of a small run; keyword arguments are keys with underscores."""
    kebab = {key.replace("_", "-"): value for key, value in changes.items()}
    return RunSettings.from_mapping(SMALL | kebab)


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


def assert_same_results(first: Path, second: Path) -> None:
    """Compare two runs' folders: final model, mask history, and tables apart from MEASURED."""
    assert arrays_of(first / "model.npz") == arrays_of(second / "model.npz")
    assert arrays_of(first / "zero_positions.npz") == arrays_of(second / "zero_positions.npz")
    tables = [
        {name for name in TABLES if (folder / f"{name}.csv").exists()} for folder in (first, second)
    ]
    assert tables[0] == tables[1]
    for name in tables[0]:
        pd.testing.assert_frame_equal(table_of(first, name), table_of(second, name))


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
