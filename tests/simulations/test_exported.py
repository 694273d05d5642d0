"""What is read of a run's folder for an export, on files written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from simulations.checkpoint import Checkpoint
from simulations.exported import (
    by_name,
    checkpoint_of,
    difference,
    load_saved,
    on_cpu,
    unfinished,
)
from tests.simulations.small_runs import small
from zerofl_flwr.errors import DataError, PayloadError

WEIGHT, BIAS = np.array([[1.5, -2.0]], np.float32), np.array([0.25], np.float32)


def test_a_saved_model_is_loaded_by_its_names(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    np.savez(tmp_path / "model.npz", weight=WEIGHT, bias=BIAS)
    load_saved(model, tmp_path / "model.npz")
    assert model.weight.tolist() == [[1.5, -2.0]]
    assert {name: array.tolist() for name, array in by_name(model).items()} == {
        "weight": [[1.5, -2.0]],
        "bias": [0.25],
    }


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"bias": BIAS, "weight": WEIGHT}, DataError, "another model: they come in another order"),
        ({"weight": WEIGHT, "tag": BIAS}, DataError, "another model: bias, tag"),
        ({"weight": WEIGHT, "bias": WEIGHT}, PayloadError, "layer bias, field shape"),
    ],
)
def test_the_file_of_another_model_is_refused(
    arrays: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(error, match=rf"model\.npz.*{message}"):
        load_saved(nn.Linear(2, 1), tmp_path / "model.npz")


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(b"no model")
    with pytest.raises(DataError, match=r"the model .*model\.npz cannot be read"):
        load_saved(nn.Linear(2, 1), tmp_path / "model.npz")


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    Checkpoint(4, [WEIGHT], {"a": BIAS}, {}).save(tmp_path / "checkpoint.npz")
    found = checkpoint_of(tmp_path, small())
    assert found.server_round == 4
    assert [array.tolist() for array in found.arrays] == [[[1.5, -2.0]]]


@pytest.mark.parametrize(
    ("every", "why"),
    [
        (2, "the run comes to its first after round 2"),
        (9, "the run comes to its first after round 3"),
        (0, r"the run keeps none \(checkpoint-every 0\): run it again with checkpoint-every 1"),
    ],
)
def test_why_there_is_no_checkpoint_is_told(every: int, why: str, tmp_path: Path) -> None:
    message = rf"has no checkpoint\.npz, which a client's network is made from: {why}$"
    with pytest.raises(DataError, match=message):
        checkpoint_of(tmp_path, small(rounds=3, checkpoint_every=every))


def test_a_run_of_another_device_is_read_on_the_cpu() -> None:
    assert on_cpu(small(device="cuda")) == small(device="cpu")


def test_a_network_from_before_the_end_is_noted() -> None:
    assert unfinished(small(rounds=3), 3) == []
    assert unfinished(small(rounds=3), 1) == [
        "the run has not ended: this is the network after round 1 of 3"
    ]


def test_arrays_that_differ_are_named() -> None:
    assert difference({"b": BIAS, "c": BIAS}, ["a", "b"]) == "a, c"
    assert difference({"b": BIAS, "a": BIAS}, ["a", "b"]) == "they come in another order"
