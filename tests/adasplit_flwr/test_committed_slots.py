"""Copy-on-write slots: which ones are used again, and what tables are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adasplit_flwr.committed_slots import CommittedSlots
from adasplit_flwr.slot_file import SlotFile
from zerofl_flwr.errors import DataError
from zerofl_flwr.model_arrays import Array

FLOAT32 = np.dtype(np.float32)
SHAPE = (3, 4)


def slots_in(folder: Path) -> CommittedSlots:
    return CommittedSlots(folder / "slots.bin", SHAPE, FLOAT32)


def filled(value: float) -> Array:
    return np.full(SHAPE, value, np.float32)


def slot_of(table: dict[str, Array], client: int) -> int:
    [position] = np.flatnonzero(table["clients"] == client)
    return int(table["slots"][position])


def content(slots: CommittedSlots, client: int) -> tuple[float, int]:
    out = np.zeros(SHAPE, np.float32)
    steps = slots.load(client, out)
    assert (out == out[0, 0]).all()
    return float(out[0, 0]), steps


def test_a_record_is_written_in_place_until_a_table_names_its_slot(tmp_path: Path) -> None:
    slots = slots_in(tmp_path)
    for value in (1.0, 2.0):
        slots.save(5, filled(value), steps=int(value))
    first = slots.commit()
    assert {name: column.tolist() for name, column in first.items() if name != "checksums"} == {
        "clients": [5],
        "slots": [0],
        "steps": [2],
    }
    for value in (3.0, 4.0):
        slots.save(5, filled(value), steps=int(value))
    second = slots.commit()
    assert slot_of(second, 5) == 1
    assert content(slots, 5) == (4.0, 4)


def test_slots_of_old_tables_are_used_again_once_the_new_one_is_on_disk(tmp_path: Path) -> None:
    slots = slots_in(tmp_path)
    slots.save(0, filled(0.0), steps=1)
    slots.save(1, filled(1.0), steps=1)
    slots.commit()
    slots.save(0, filled(2.0), steps=2)
    assert slot_of(slots.commit(), 0) == 2
    slots.save(0, filled(3.0), steps=3)  # 0 and 2 are both held: nobody said what is on disk
    assert slot_of(slots.commit(), 0) == 3
    slots.committed()
    slots.save(0, filled(4.0), steps=4)
    slots.save(1, filled(5.0), steps=2)
    third = slots.commit()
    assert (slot_of(third, 0), slot_of(third, 1)) == (0, 2)
    assert [content(slots, client) for client in (0, 1)] == [(4.0, 4), (5.0, 2)]


def test_saying_so_late_frees_nothing_that_is_in_use(tmp_path: Path) -> None:
    slots = slots_in(tmp_path)
    slots.save(0, filled(0.0), steps=1)
    slots.commit()
    slots.save(0, filled(1.0), steps=2)
    slots.committed()  # of the first table, while a newer record is there
    slots.save(1, filled(2.0), steps=1)
    assert [content(slots, client) for client in (0, 1)] == [(1.0, 2), (2.0, 1)]
    slots.committed()
    slots.committed()
    slots.save(2, filled(3.0), steps=1)
    assert [content(slots, client) for client in (0, 1, 2)] == [(1.0, 2), (2.0, 1), (3.0, 1)]


def test_slots_that_no_table_names_are_free_after_a_restart(tmp_path: Path) -> None:
    slots = slots_in(tmp_path)
    slots.save(0, filled(0.0), steps=1)
    table = slots.commit()
    slots.save(0, filled(1.0), steps=2)
    again = slots_in(tmp_path)
    again.restore(table)
    assert content(again, 0) == (0.0, 1)
    again.save(3, filled(9.0), steps=7)
    assert slot_of(again.commit(), 3) == 1
    assert content(again, 0) == (0.0, 1)


def test_what_was_restored_outlives_a_second_crash(tmp_path: Path) -> None:
    slots = slots_in(tmp_path)
    slots.save(0, filled(0.0), steps=1)
    table = slots.commit()
    for value in (1.0, 2.0):
        again = slots_in(tmp_path)
        again.restore(table)
        assert content(again, 0) == (0.0, 1)
        again.save(0, filled(value), steps=2)


def test_a_restored_record_is_compared_with_its_checksum_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = slots_in(tmp_path)
    slots.save(0, filled(0.0), steps=1)
    table = slots.commit()
    again = slots_in(tmp_path)
    again.restore(table)
    looked_at: list[int] = []
    checksum = SlotFile.checksum

    def counted(file: SlotFile, slot: int) -> int:
        looked_at.append(slot)
        return checksum(file, slot)

    monkeypatch.setattr(SlotFile, "checksum", counted)
    again.load_row(0, 0)
    content(again, 0)
    again.save(0, filled(1.0), steps=2)
    content(again, 0)
    assert looked_at == [0]


def test_unchanged_records_keep_slot_and_checksum_without_being_read(tmp_path: Path) -> None:
    slots = slots_in(tmp_path)
    slots.save(0, filled(0.0), steps=1)
    table = slots.commit()
    again = slots_in(tmp_path)
    again.restore(table)
    damage(tmp_path, slot=0)
    second = again.commit()
    assert {name: column.tolist() for name, column in second.items()} == {
        name: column.tolist() for name, column in table.items()
    }


def damage(folder: Path, *, slot: int) -> None:
    """Flip one bit of a slot."""
    path = folder / "slots.bin"
    content = bytearray(path.read_bytes())
    content[65_536 * (1 + slot) + 17] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("row", [False, True])
def test_a_flipped_bit_is_found_when_the_record_is_first_read(tmp_path: Path, row: bool) -> None:
    slots = slots_in(tmp_path)
    for client in (0, 1):
        slots.save(client, filled(client), steps=1)
    table = slots.commit()
    damage(tmp_path, slot=1)
    again = slots_in(tmp_path)
    again.restore(table)
    assert content(again, 0) == (0.0, 1)
    for _ in range(2):
        with pytest.raises(DataError, match=r"client 1 in slot 1 of .* is damaged, or of another"):
            again.load_row(1, 0) if row else content(again, 1)


def test_an_empty_table_needs_no_file(tmp_path: Path) -> None:
    slots = slots_in(tmp_path)
    table = slots.commit()
    assert {name: column.tolist() for name, column in table.items()} == {
        "clients": [],
        "slots": [],
        "steps": [],
        "checksums": [],
    }
    again = slots_in(tmp_path)
    again.restore(table)
    assert again.clients() == []
    assert list(tmp_path.iterdir()) == []


def good_table() -> dict[str, Array]:
    return {
        "clients": np.array([0, 1]),
        "slots": np.array([1, 0]),
        "steps": np.array([3, 4]),
        "checksums": np.array([5, 6]),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": np.zeros(2, int)}, "holds clients, slots, steps, checksums; got .*more"),
        ({"steps": np.array([1])}, "whole numbers, as many in each"),
        ({"steps": np.array([1.0, 2.0])}, "whole numbers, as many in each"),
        ({"slots": np.array([1, 1])}, "names a client or a slot twice"),
        ({"clients": np.array([1, 1])}, "names a client or a slot twice"),
        ({"clients": np.array([-1, 1])}, "a negative client, slot or count of steps"),
        ({"slots": np.array([0, -1])}, "a negative client, slot or count of steps"),
        ({"slots": np.array([0, 2])}, "too short: it has 2 whole slots, and .* names slot 2"),
    ],
)
def test_malformed_tables_are_refused_and_change_nothing(
    tmp_path: Path, changes: dict[str, Array], message: str
) -> None:
    slots = slots_in(tmp_path)
    for client in (7, 8):
        slots.save(client, filled(client), steps=client)
    with pytest.raises(DataError, match=message):
        slots.restore(good_table() | changes)
    assert [content(slots, client) for client in slots.clients()] == [(7.0, 7), (8.0, 8)]


def test_a_table_without_its_file_or_a_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no"):
        slots_in(tmp_path).restore(good_table())
    table = good_table()
    del table["checksums"]
    with pytest.raises(DataError, match="got clients, slots, steps"):
        slots_in(tmp_path).restore(table)
