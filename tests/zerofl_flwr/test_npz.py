"""``.npz`` files: whole or not at all."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from zerofl_flwr.errors import DataError
from zerofl_flwr.npz import load_npz, save_npz

ARRAYS: dict[str, NDArray[Any]] = {
    "round": np.array(12),
    "model/00001": np.full((2, 3), 1.25, np.float32),
    "model/00000": np.zeros((0, 4), np.float16),
    "mask": np.array([3, 255], np.uint8),
    "kept": np.array([True, False]),
}
OTHERS = {"round": np.array(13), "model/00001": np.full(1000, 2.5)}


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def a_zip_of(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def round_of(path: Path) -> int:
    return int(load_npz(path, what="file")["round"])


def test_arrays_come_back_as_they_were_and_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "arrays.npz"
    save_npz(path, ARRAYS)
    again = load_npz(path, what="file")
    assert list(again) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert again[name].dtype == array.dtype
        assert again[name].shape == array.shape
        assert again[name].tobytes() == array.tobytes()


def test_an_empty_file_holds_no_arrays(tmp_path: Path) -> None:
    save_npz(tmp_path / "none.npz", {})
    assert load_npz(tmp_path / "none.npz", what="file") == {}


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_in_the_middle_of_writing_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "arrays.npz"
    save_npz(path, ARRAYS)
    before = path.read_bytes()

    def write_half(file: Any, **arrays: Any) -> None:
        file.write(before[: len(before) // 2])
        file.flush()
        raise error

    monkeypatch.setattr(np, "savez", write_half)
    with pytest.raises(type(error)):
        save_npz(path, OTHERS)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["arrays.npz"]
    assert round_of(path) == 12


def test_the_old_file_is_replaced_and_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    save_npz(path, ARRAYS)
    before = path.read_bytes()
    with path.open("rb") as old:
        save_npz(path, OTHERS)
        assert old.read() == before
    assert round_of(path) == 13


def test_what_a_killed_run_left_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    (tmp_path / ".arrays.npz.partial").write_bytes(b"half a file")
    save_npz(path, ARRAYS)
    assert [file.name for file in tmp_path.iterdir()] == ["arrays.npz"]
    assert round_of(path) == 12


def test_nothing_is_pickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        save_npz(tmp_path / "arrays.npz", {"objects": np.array([{"an": "object"}], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_for_the_caller_to_judge(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_npz(tmp_path / "arrays.npz", what="file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive at all",
        b"PK\x03\x04 looks like one",
        npy(np.zeros(3)),
        a_zip_of({"round.npy": npy(np.array(3))[:-4]}),
        a_zip_of({"round.npy": npy(np.array([{"an": "object"}], dtype=object))}),
        a_zip_of({"round.npy": npy(np.zeros(3)).replace(b"(3,), ", b"(3" + b"0" * 5 + b")", 1)}),
    ],
    ids=["empty", "text", "half a zip", "npy", "cut array", "pickle", "crooked header"],
)
def test_a_damaged_file_is_named_with_what_it_should_be(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "arrays.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"the state of client 3 .*arrays\.npz cannot be read"):
        load_npz(path, what="state of client 3")


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "arrays.npz").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        load_npz(tmp_path / "arrays.npz", what="file")


def test_a_flipped_bit_in_an_array_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    save_npz(path, OTHERS)
    content = bytearray(path.read_bytes())
    at = content.index(np.full(2, 2.5).tobytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        load_npz(path, what="file")


@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_a_cut_or_altered_file_raises_nothing_but_data_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("altered") / "arrays.npz"
    save_npz(path, ARRAYS)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    refused = False
    try:
        again = load_npz(path, what="file")
    except DataError as error:
        refused = str(path) in str(error)
        again = {}
    # Not every bit of a zip file matters: the time of writing does not.
    assert refused or {k: v.tolist() for k, v in again.items()} == {
        k: v.tolist() for k, v in ARRAYS.items()
    }
