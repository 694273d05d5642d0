"""Checkpoints: whole or not at all."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulations.checkpoint import Checkpoint
from zerofl_flwr.errors import DataError

CHECKPOINT = Checkpoint(
    server_round=12,
    # More than ten arrays: their order must not be that of the text "10" < "2".
    arrays=[np.full((2, 3), index, np.float32) for index in range(11)]
    + [np.array(7, np.int64), np.zeros((0, 4), np.float16)],
    state={"wrapped/momentum/00000": np.array([1.5, -2.5]), "mask/fc": np.array([3], np.uint8)},
    history={"rounds": np.array([1, 2]), "fc/positions": np.array([0, 5])},
)


def same(first: NDArray[Any], second: NDArray[Any]) -> bool:
    return first.dtype == second.dtype and np.array_equal(first, second)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "checkpoint.npz"
    CHECKPOINT.save(path)
    again = Checkpoint.load(path)
    assert again.server_round == 12
    assert isinstance(again.server_round, int)
    assert all(map(same, again.arrays, CHECKPOINT.arrays))
    assert len(again.arrays) == len(CHECKPOINT.arrays)
    for mine, theirs in ((again.state, CHECKPOINT.state), (again.history, CHECKPOINT.history)):
        assert list(mine) == list(theirs)
        assert all(same(mine[name], theirs[name]) for name in theirs)


def test_state_and_history_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    Checkpoint(1, [np.ones(2)], {}, {}).save(path)
    again = Checkpoint.load(path)
    assert (again.state, again.history) == ({}, {})


def test_an_interrupted_save_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.npz"
    CHECKPOINT.save(path)

    def write_half(file: Any, **arrays: Any) -> None:
        file.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", write_half)
    with pytest.raises(OSError, match="disk full"):
        Checkpoint(13, CHECKPOINT.arrays, {}, {}).save(path)
    assert Checkpoint.load(path).server_round == 12


def test_a_missing_checkpoint_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no checkpoint .* to resume from"):
        Checkpoint.load(tmp_path / "checkpoint.npz")


def a_zip_of(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive at all",
        b"PK\x03\x04 looks like one",
        npy(np.zeros(3)),
        a_zip_of({"round.npy": npy(np.array(3))[:-4]}),
        a_zip_of({"round.npy": npy(np.array([3, 4]))}),
        a_zip_of({"model/00000.npy": npy(np.zeros(3))}),
        a_zip_of({"round.npy": npy(np.array([{"an": "object"}], dtype=object))}),
    ],
    ids=["empty", "text", "half a zip", "npy", "cut array", "two rounds", "no round", "pickle"],
)
def test_a_damaged_checkpoint_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"the checkpoint .*checkpoint\.npz cannot be read"):
        Checkpoint.load(path)


@pytest.mark.parametrize("where", [0.2, 0.5, 0.8, 0.999])
def test_a_cut_or_altered_checkpoint_is_refused(tmp_path: Path, where: float) -> None:
    path = tmp_path / "checkpoint.npz"
    CHECKPOINT.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(where * len(whole))])
    with pytest.raises(DataError, match="cannot be read"):
        Checkpoint.load(path)
