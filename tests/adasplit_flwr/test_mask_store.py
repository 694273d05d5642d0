"""The store of masks: what is kept, what stays in memory, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from adasplit_flwr.mask_store import FILE_NAME, MaskStore
from tests.adasplit_flwr.stored_masks import (
    LENGTH,
    RECORD_BYTES,
    after,
    content,
    fresh,
    store,
    train,
)
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.model_arrays import Array


def test_a_new_client_starts_with_its_mask_and_without_moments() -> None:
    masks = store(None)
    record = masks.record(3)
    assert record.mask.tolist() == [300.0, 301.0, 302.0, 303.0, 304.0, 305.0]
    assert record.exp_avg.tolist() == record.exp_avg_sq.tolist() == [0.0] * LENGTH
    assert record.steps == 0
    assert masks.clients() == []  # looked at, not trained
    train(masks, 3)
    assert masks.clients() == [3]
    assert content(masks, 3) == after(3, 1)


def test_records_go_to_the_file_and_come_back(tmp_path: Path) -> None:
    masks = store(tmp_path)
    for client in (0, 1, 2, 1, 0, 1):
        train(masks, client)
    assert masks.clients() == [0, 1, 2]
    assert [content(masks, client) for client in range(3)] == [
        after(0, 2),
        after(1, 3),
        after(2, 1),
    ]
    assert (tmp_path / FILE_NAME).exists()


def test_the_least_recently_used_record_leaves_first(tmp_path: Path) -> None:
    masks = store(tmp_path, records=2)
    first, second = masks.record(1), masks.record(2)
    assert masks.record(1) is first
    masks.record(3)
    assert masks.record(1) is first
    assert masks.record(2) is not second


def test_within_the_budget_nothing_is_written_before_a_commit(tmp_path: Path) -> None:
    masks = store(tmp_path, records=3)
    for client in (0, 1, 2, 0):
        train(masks, client)
    assert list(tmp_path.iterdir()) == []
    masks.commit()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_looking_at_a_mask_moves_and_keeps_nothing(tmp_path: Path) -> None:
    masks = store(tmp_path)
    train(masks, 0)
    train(masks, 1)
    resident = masks.record(1)
    assert masks.mask(0).tolist() == after(0, 1)[0][0]  # from the file
    assert masks.mask(1).tolist() == after(1, 1)[0][0]  # from memory
    assert masks.mask(2).tolist() == fresh(2).tolist()
    assert masks.record(1) is resident
    assert masks.clients() == [0, 1]


@pytest.mark.parametrize("records", [0, 2])
def test_without_a_folder_all_stay_in_memory_whatever_the_budget(records: int) -> None:
    masks = store(None, records=records)
    for client in range(5):
        train(masks, client)
    table = masks.commit()
    assert [content(masks, client) for client in range(5)] == [after(n, 1) for n in range(5)]
    again = store(None, records=records)
    again.restore(table)
    assert again.clients() == list(range(5))


def test_a_table_without_a_file_holds_copies_of_the_records() -> None:
    masks = store(None, records=2)
    train(masks, 4)
    train(masks, 1)
    table = masks.commit()
    assert list(table) == ["clients", "steps", "record/1", "record/4"]
    train(masks, 4)
    masks.committed()
    again = store(None, records=2)
    again.restore(table)
    assert [content(again, client) for client in again.clients()] == [after(1, 1), after(4, 1)]
    train(again, 4)
    assert content(again, 4) == content(masks, 4)
    assert table["record/4"].tolist() == after(4, 1)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "at least 1 element, not 0"),
        ({"dtype": torch.float16}, "float32 or float64, not torch.float16"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int], message: str) -> None:
    arguments = {"length": LENGTH, "dtype": torch.float64, "make": fresh} | options
    with pytest.raises(SettingsError, match=message):
        MaskStore(**arguments)  # type: ignore[arg-type]


def test_a_budget_without_room_for_one_record_is_refused(tmp_path: Path) -> None:
    message = "memory_budget_bytes is 143; one client's mask and moments take 144"
    with pytest.raises(SettingsError, match=message):
        MaskStore(
            LENGTH,
            torch.float64,
            make=fresh,
            folder=tmp_path,
            memory_budget_bytes=RECORD_BYTES - 1,
        )


@pytest.mark.parametrize("client", [-1, 1.0, True, "1"])
def test_clients_are_whole_numbers(client: int) -> None:
    masks = store(None)
    for ask in (masks.record, masks.mask):
        with pytest.raises(SettingsError, match="a client is a whole number from 0, not"):
            ask(client)


def test_a_fresh_mask_of_another_size_or_dtype_is_refused() -> None:
    masks = store(None, length=LENGTH + 1)
    with pytest.raises(SettingsError, match=r"client 0 has shape \(6,\).*expected \(7,\)"):
        masks.record(0)
    single = MaskStore(LENGTH, torch.float32, make=fresh)
    with pytest.raises(SettingsError, match=r"dtype torch\.float64; expected .* torch\.float32"):
        single.mask(0)


def test_only_a_record_at_hand_can_have_changed() -> None:
    with pytest.raises(SettingsError, match="the record of client 2 was not asked for"):
        store(None).changed(2)


def test_a_commit_writes_only_what_changed(tmp_path: Path) -> None:
    masks = store(tmp_path, records=3)
    for client in (0, 1, 2):
        train(masks, client)
    first = masks.commit()
    masks.committed()
    train(masks, 1)
    second = masks.commit()
    assert second["slots"].tolist() == [0, 3, 2]
    assert second["steps"].tolist() == [1, 2, 1]
    unchanged = [0, 2]
    assert (second["checksums"][unchanged] == first["checksums"][unchanged]).all()
    assert second["checksums"][1] != first["checksums"][1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": np.array([1, 2])}, "holds a record and a count of steps for each"),
        ({"steps": np.array([1])}, "holds a record and a count of steps for each"),
        ({"record/7": np.zeros((3, LENGTH))}, "holds a record and a count of steps for each"),
        ({"record/1": np.zeros((3, 5))}, r"client 1 has shape \(3, 5\) .* expected \(3, 6\)"),
        ({"record/1": np.zeros((3, 6), np.float32)}, "dtype float32; expected .* float64"),
    ],
)
def test_malformed_tables_without_a_file_are_refused_and_change_nothing(
    changes: dict[str, Array], message: str
) -> None:
    masks = store(None, records=2)
    train(masks, 0)
    train(masks, 1)
    table = masks.commit()
    with pytest.raises(DataError, match=message):
        masks.restore(table | changes)
    assert [content(masks, client) for client in (0, 1)] == [after(0, 1), after(1, 1)]


def test_tables_with_and_without_a_file_are_not_mixed_up(tmp_path: Path) -> None:
    within, beside = store(None), store(tmp_path)
    train(within, 0)
    train(beside, 0)
    with pytest.raises(DataError, match=r"got clients, steps, record/0"):
        beside.restore(within.commit())
    with pytest.raises(DataError, match=r"got clients, slots, steps, checksums"):
        within.restore(beside.commit())
