"""What a crash, or a damaged file, leaves of the store of masks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from adasplit_flwr.mask_store import FILE_NAME, MaskStore
from tests.adasplit_flwr.stored_masks import LENGTH, Content, after, content, fresh, store, train
from zerofl_flwr.errors import DataError
from zerofl_flwr.model_arrays import Array


def restored(folder: Path, table: dict[str, Array]) -> list[Content]:
    masks = store(folder)
    masks.restore(table)
    return [content(masks, client) for client in masks.clients()]


def test_a_crash_before_the_checkpoint_is_on_disk_leaves_the_one_before(tmp_path: Path) -> None:
    masks = store(tmp_path)
    train(masks, 0)
    train(masks, 1)
    on_disk = masks.commit()
    masks.committed()
    for client in (0, 1, 2, 0):  # spill at every switch
        train(masks, client)
    written = masks.commit()
    train(masks, 0)
    train(masks, 2)
    # The process dies here; whichever of the two checkpoints is found, its records are.
    for table, expected in (
        (written, [after(0, 3), after(1, 2), after(2, 1)]),
        (on_disk, [after(0, 1), after(1, 1)]),
    ):
        copy = tmp_path / f"copy-{len(expected)}"
        copy.mkdir()
        shutil.copy(tmp_path / FILE_NAME, copy)
        assert restored(copy, table) == expected


def test_training_goes_on_after_a_crash_as_if_it_had_not_been(tmp_path: Path) -> None:
    masks = store(tmp_path)
    train(masks, 0)
    train(masks, 1)
    table = masks.commit()
    masks.committed()
    train(masks, 0)
    train(masks, 1)  # lost
    again = store(tmp_path)
    again.restore(table)
    for _ in range(3):
        train(again, 1)
    assert [content(again, client) for client in (0, 1)] == [after(0, 1), after(1, 4)]


def test_the_file_stops_growing_when_checkpoints_are_acknowledged(tmp_path: Path) -> None:
    masks = store(tmp_path)
    sizes = []
    for _ in range(5):
        for client in range(3):
            train(masks, client)
        masks.commit()
        masks.committed()
        sizes.append((tmp_path / FILE_NAME).stat().st_size)
    assert sizes[1] == sizes[4]
    assert sizes[1] - sizes[0] == 3 * 65_536  # the new beside the old


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    masks = store(tmp_path)
    train(masks, 0)
    train(masks, 1)
    table = masks.commit()
    path = tmp_path / FILE_NAME
    good = bytearray(path.read_bytes())
    flipped = good.copy()
    flipped[2 * 65_536 + 40] ^= 1
    path.write_bytes(flipped)
    again = store(tmp_path)
    again.restore(table)
    assert content(again, 0) == after(0, 1)
    for ask in (again.record, again.mask):
        with pytest.raises(DataError, match=r"the mask of client 1 in slot 1 .* is damaged"):
            ask(1)
    path.write_bytes(good)
    os.truncate(path, len(good) - 1)
    with pytest.raises(DataError, match="too short: it has 1 whole slots"):
        store(tmp_path).restore(table)
    path.write_bytes(good)
    with pytest.raises(DataError, match=r"expected .*\[3, 7\]"):
        store(tmp_path, length=7).restore(table)
    single = MaskStore(LENGTH, torch.float32, make=fresh, folder=tmp_path)
    with pytest.raises(DataError, match=r'expected .*"<f4"'):
        single.restore(table)
    path.unlink()
    with pytest.raises(DataError, match="there is no"):
        store(tmp_path).restore(table)
