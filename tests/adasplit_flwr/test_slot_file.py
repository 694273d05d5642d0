"""Slots of a file: written, read, checked, and refused when they are not what was asked for."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest

from adasplit_flwr.slot_file import SlotFile
from zerofl_flwr.errors import DataError

FLOAT32 = np.dtype(np.float32)
SHAPE = (3, 5)


def values(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(number).standard_normal(SHAPE, dtype=np.float32)


def filled(path: Path, slots: int) -> SlotFile:
    file = SlotFile.create(path, SHAPE, FLOAT32)
    for number in range(slots):
        assert file.add_slot() == number
        file.write(number, values(number))
    return file


def test_slots_are_read_as_they_were_written_also_after_opening_again(tmp_path: Path) -> None:
    filled(tmp_path / "deep" / "slots.bin", 3).flush()
    file = SlotFile.open(tmp_path / "deep" / "slots.bin", SHAPE, FLOAT32)
    assert file.count == 3
    file.write(1, values(7))
    for slot, number in ((0, 0), (1, 7), (2, 2)):
        out = np.zeros(SHAPE, np.float32)
        file.read(slot, out)
        assert out.tobytes() == values(number).tobytes()
        assert file.read_row(slot, 2).tobytes() == values(number)[2].tobytes()
        assert file.checksum(slot) == zlib.crc32(values(number).tobytes())


def test_a_row_is_a_copy(tmp_path: Path) -> None:
    file = filled(tmp_path / "slots.bin", 1)
    file.read_row(0, 0)[:] = 9
    assert (file.read_row(0, 0) == values(0)[0]).all()


def test_a_slot_larger_than_the_alignment_does_not_reach_into_the_next(tmp_path: Path) -> None:
    file = SlotFile.create(tmp_path / "slots.bin", (3, 10_000), np.dtype(np.float64))
    for number in range(2):
        file.add_slot()
        file.write(number, np.full((3, 10_000), number, np.float64))
    out = np.zeros((3, 10_000))
    file.read(0, out)
    assert (out == 0).all()
    file.read(1, out)
    assert (out == 1).all()


def test_resident_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    shape, process = (3, 1_000_000), psutil.Process()
    file = SlotFile.create(tmp_path / "slots.bin", shape, FLOAT32)
    array = np.ones(shape, np.float32)
    file.add_slot()
    file.write(0, array)
    before = process.memory_info().rss
    for number in range(1, 10):
        file.add_slot()
        file.write(number, array)
        file.checksum(number)
    assert process.memory_info().rss - before < 2 * array.nbytes  # the file holds ten times it


def test_create_takes_the_place_of_an_old_file(tmp_path: Path) -> None:
    filled(tmp_path / "slots.bin", 2)
    assert filled(tmp_path / "slots.bin", 1).count == 1
    assert SlotFile.open(tmp_path / "slots.bin", SHAPE, FLOAT32).count == 1
    assert [path.name for path in tmp_path.iterdir()] == ["slots.bin"]


def test_files_that_are_not_the_expected_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "slots.bin"
    with pytest.raises(DataError, match=r"there is no .*slots\.bin"):
        SlotFile.open(path, SHAPE, FLOAT32)
    filled(path, 1)
    with pytest.raises(
        DataError,
        match=r'holds arrays of {"shape": \[3, 5\], "dtype": "<f4"}, expected {"shape": \[3, 6\]',
    ):
        SlotFile.open(path, (3, 6), FLOAT32)
    with pytest.raises(DataError, match=r'expected .*"<f8"}'):
        SlotFile.open(path, SHAPE, np.dtype(np.float64))
    os.truncate(path, 100)
    with pytest.raises(DataError, match="is cut short, or no file of slots"):
        SlotFile.open(path, SHAPE, FLOAT32)
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(DataError, match="is cut short, or no file of slots"):
        SlotFile.open(path, SHAPE, FLOAT32)
    with pytest.raises(DataError, match="cannot be read"):
        SlotFile.open(tmp_path, SHAPE, FLOAT32)
    with pytest.raises(DataError, match="cannot create"):
        SlotFile.create(path / "inside", SHAPE, FLOAT32)


def test_half_a_slot_at_the_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "slots.bin"
    filled(path, 2)
    os.truncate(path, path.stat().st_size - 1)
    assert SlotFile.open(path, SHAPE, FLOAT32).count == 1


def test_a_file_that_shrinks_or_goes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "slots.bin"
    file = filled(path, 2)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataError, match="is too short for its slot 1"):
        file.checksum(1)
    with pytest.raises(DataError, match="is too short for its slot 1"):
        file.write(1, values(0))
    path.unlink()
    with pytest.raises(DataError, match=r"slot 0 of .* cannot be reached"):
        file.read_row(0, 0)
    with pytest.raises(DataError, match="cannot flush"):
        file.flush()
    with pytest.raises(DataError, match=r"cannot make .* longer"):
        file.add_slot()


def test_a_full_disk_is_an_error_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = filled(tmp_path / "slots.bin", 1)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(DataError, match=r"cannot make .* longer: .*No space left"):
        file.add_slot()
    assert file.count == 1


def test_without_fallocate_the_file_grows_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    file = filled(tmp_path / "slots.bin", 2)
    assert file.read_row(1, 0).tolist() == values(1)[0].tolist()
