from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from simulations.run_files import numbers, read_mask_history, read_table
from tests.simulations.run_folders import write_masks
from zerofl_flwr.errors import DataError

KEPT = np.array(
    [
        [1, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 1, 0, 0, 0, 1, 1],
    ],
    dtype=np.bool_,
)


def save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **arrays)


def test_masks_come_back_as_they_were_packed(tmp_path: Path) -> None:
    write_masks(tmp_path, [4, 9], {"conv.weight": KEPT, "fc.weight": ~KEPT}, step=3)
    history = read_mask_history(tmp_path / "zero_positions.npz")
    assert history is not None
    assert history.rounds.tolist() == [4, 9]
    assert list(history.kept) == ["conv.weight", "fc.weight"]
    assert history.kept["conv.weight"].tolist() == KEPT.tolist()
    assert history.kept["fc.weight"].tolist() == (~KEPT).tolist()
    assert history.positions["conv.weight"].tolist() == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]


def test_masks_that_are_not_there_are_none(tmp_path: Path) -> None:
    assert read_mask_history(tmp_path / "zero_positions.npz") is None
    np.savez(tmp_path / "zero_positions.npz", rounds=np.array([], dtype=np.int64))
    assert read_mask_history(tmp_path / "zero_positions.npz") is None
    write_masks(tmp_path, [1, 2], {"conv": np.zeros((2, 0), dtype=np.bool_)})
    assert read_mask_history(tmp_path / "zero_positions.npz") is None


def test_broken_masks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "zero_positions.npz"
    positions = np.arange(10)
    packed = np.packbits(KEPT, axis=1)
    rounds = np.array([4, 9])
    save(path, {"conv/positions": positions, "conv/kept": packed})
    with pytest.raises(DataError, match="'rounds' is missing"):
        read_mask_history(path)
    save(path, {"rounds": rounds, "conv/kept": packed})
    with pytest.raises(DataError, match="'conv/positions' is missing"):
        read_mask_history(path)
    save(path, {"rounds": rounds, "conv/positions": positions, "conv/kept": packed[:1]})
    with pytest.raises(DataError, match=r"layer conv: .* shape \(2, 2\) .* shape \(1, 2\)"):
        read_mask_history(path)
    save(path, {"rounds": rounds, "conv/positions": positions, "conv/kept": packed * 1.0})
    with pytest.raises(DataError, match="but is float64"):
        read_mask_history(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"the mask history .*zero_positions\.npz cannot be read"):
        read_mask_history(path)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "zero_positions.npz"
    np.savez(path, rounds=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"the mask history .*zero_positions\.npz cannot be read"):
        read_mask_history(path)


def test_a_table_without_rows_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    assert read_table(path) is None
    path.write_text("")
    assert read_table(path) is None
    path.write_text("round,accuracy\n")
    assert read_table(path, ("round",)) is None


def test_a_table_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text("round,loss\n1,2.5\n")
    with pytest.raises(DataError, match=r"rounds\.csv: columns \['accuracy'\] are missing"):
        read_table(path, ("round", "accuracy"))


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text("a,b\n1,2\n1,2,3,4\n")
    with pytest.raises(DataError, match="not a readable CSV table"):
        read_table(path)
    path.write_bytes(b"a,b\n\xff\xfe\x00,1\n")
    with pytest.raises(DataError, match="not a readable CSV table"):
        read_table(path)


def test_empty_cells_are_nan_and_text_is_refused() -> None:
    table = pd.DataFrame({"good": [1.5, None], "bad": ["1.5", "many"]})
    assert numbers(table, "good").dtype == np.float64
    np.testing.assert_array_equal(numbers(table, "good"), [1.5, np.nan])
    with pytest.raises(DataError, match="column 'bad'"):
        numbers(table, "bad")
