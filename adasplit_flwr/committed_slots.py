"""Which slot of a file holds which client's record: copy-on-write, so that a crash loses nothing.

A table that :meth:`CommittedSlots.commit` returned stays true until a later one is known to be on
disk: no slot that it names is written to.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adasplit_flwr.slot_file import SlotFile
from zerofl_flwr.errors import DataError
from zerofl_flwr.model_arrays import Array

COLUMNS = ("clients", "slots", "steps", "checksums")


@dataclass
class _Place:
    """Where a client's record is; `checksum` is None until it is committed."""

    slot: int
    steps: int
    checksum: int | None = None
    trusted: bool = True  # written by this process, or its checksum was compared


class CommittedSlots:
    """Records of clients in a :class:`SlotFile`, found again through committed tables.

    Parameters
    ----------
    path : Path
        The file. The first record makes it anew, unless :meth:`restore` took over the old one.
    shape : tuple of int
        Of a record's array.
    dtype : numpy dtype
        Of its elements.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._path = path
        self._shape = shape
        self._dtype = dtype
        self._file: SlotFile | None = None
        self._places: dict[int, _Place] = {}
        self._free: list[int] = []  # a heap
        self._held: set[int] = set()  # named by a table that may be the one on disk
        self._last: set[int] = set()  # named by the last table

    def __contains__(self, client: int) -> bool:
        return client in self._places

    def clients(self) -> list[int]:
        """Return the clients that have a record here."""
        return list(self._places)

    def save(self, client: int, values: Array, steps: int) -> None:
        """Write a client's record to a slot that no table names.

        Raises
        ------
        DataError
            If the file cannot be written; the client's old record then stays.
        """
        file = self._file
        if file is None:
            file = self._file = SlotFile.create(self._path, self._shape, self._dtype)
        place = self._places.get(client)
        if place is not None and place.slot not in self._held:
            slot = place.slot
        else:
            slot = heapq.heappop(self._free) if self._free else file.add_slot()
        file.write(slot, values)
        self._places[client] = _Place(slot, steps)

    def load(self, client: int, out: Array) -> int:
        """Copy a client's record to `out` and return its steps.

        Raises
        ------
        DataError
            If the file is damaged.
        """
        file, place = self._checked(client)
        file.read(place.slot, out)
        return place.steps

    def load_row(self, client: int, row: int) -> Array:
        """Return a copy of one row of a client's record.

        Raises
        ------
        DataError
            If the file is damaged.
        """
        file, place = self._checked(client)
        return file.read_row(place.slot, row)

    def commit(self) -> dict[str, Array]:
        """Flush the file and return the table of all records.

        Returns
        -------
        dict of str to ndarray of int64, shape (clients,)
            ``clients`` ascending, and their ``slots``, ``steps`` and ``checksums`` (CRC-32).

        Raises
        ------
        DataError
            If the file cannot be written or read.
        """
        rows = []
        for client, place in sorted(self._places.items()):
            if place.checksum is None:
                place.checksum = self._existing_file().checksum(place.slot)
            rows.append((client, place.slot, place.steps, place.checksum))
        if self._file is not None:
            self._file.flush()
        self._last = {place.slot for place in self._places.values()}
        self._held |= self._last
        columns = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T
        return {name: column.copy() for name, column in zip(COLUMNS, columns, strict=True)}

    def committed(self) -> None:
        """Take note that the last table is on disk: slots that only older ones name are free."""
        for slot in self._held - self._last:
            heapq.heappush(self._free, slot)
        self._held = set(self._last)

    def restore(self, table: Mapping[str, Array]) -> None:
        """Take over the file as a table describes it; records are read when they are asked for.

        Parameters
        ----------
        table : mapping of str to ndarray
            As :meth:`commit` returned it.

        Raises
        ------
        DataError
            If the table is malformed, or the file is missing, too short, or made for other records.
            Nothing has changed then.
        """
        places = _places_of(table)
        used = {place.slot for place in places.values()}
        file: SlotFile | None = None
        if places:
            file = SlotFile.open(self._path, self._shape, self._dtype)
            if max(used) >= file.count:
                raise DataError(
                    f"{self._path} is too short: it has {file.count} whole slots, and the "
                    f"checkpoint names slot {max(used)}"
                )
        self._file, self._places = file, places
        self._held, self._last = used, set(used)
        self._free = sorted(set(range(file.count if file else 0)) - used)

    def _checked(self, client: int) -> tuple[SlotFile, _Place]:
        """Return file and place, after the first look at a restored record."""
        file, place = self._existing_file(), self._places[client]
        if not place.trusted:
            checksum = file.checksum(place.slot)
            if checksum != place.checksum:
                raise DataError(
                    f"the mask of client {client} in slot {place.slot} of {self._path} is damaged, "
                    f"or of another run: its checksum is {checksum}, the checkpoint's "
                    f"{place.checksum}"
                )
            place.trusted = True
        return file, place

    def _existing_file(self) -> SlotFile:
        if self._file is None:
            raise DataError(f"there is no {self._path}")
        return self._file


def _places_of(table: Mapping[str, Array]) -> dict[int, _Place]:
    columns = [np.asarray(table[name]) for name in COLUMNS if name in table]
    if len(columns) < len(COLUMNS) or len(table) > len(COLUMNS):
        raise DataError(f"a table of masks holds {', '.join(COLUMNS)}; got {', '.join(table)}")
    lengths = {column.shape for column in columns}
    if len(lengths) > 1 or any(
        column.ndim != 1 or not np.issubdtype(column.dtype, np.integer) for column in columns
    ):
        raise DataError("the columns of a table of masks are whole numbers, as many in each")
    clients, slots, steps, checksums = (column.tolist() for column in columns)
    if any(len(set(values)) < len(values) for values in (clients, slots)):
        raise DataError("a table of masks names a client or a slot twice")
    if any(value < 0 for column in (clients, slots, steps) for value in column):
        raise DataError("a table of masks holds a negative client, slot or count of steps")
    return {
        client: _Place(slot, taken, checksum, trusted=False)
        for client, slot, taken, checksum in zip(clients, slots, steps, checksums, strict=True)
    }
