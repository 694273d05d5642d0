"""A file that is there as a whole, old or new."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerofl_flwr.atomic_file import replacing


def test_a_file_takes_the_place_of_the_old_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "numbers.bin"
    with replacing(path) as file:
        file.write(b"first")
        assert not path.exists()
    assert path.read_bytes() == b"first"
    with replacing(path) as file:
        file.write(b"second")
        file.flush()
        assert path.read_bytes() == b"first"
        assert (path.parent / ".numbers.bin.partial").read_bytes() == b"second"
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_no_part_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "numbers.bin"
    path.write_bytes(b"old")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise RuntimeError("no more numbers")

    with pytest.raises(RuntimeError, match="no more numbers"):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".numbers.bin.partial").write_bytes(b"left by a process that was killed")
    with replacing(tmp_path / "numbers.bin") as file:
        file.write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.bin"]
    assert (tmp_path / "numbers.bin").read_bytes() == b"new"


def test_where_nothing_can_be_written_it_is_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"), replacing(tmp_path / "file" / "numbers.bin"):
        pass
    assert (tmp_path / "file").read_bytes() == b""
