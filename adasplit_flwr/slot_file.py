"""One file of equal slots, each reached through a memory map that lives for a single access."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from zerofl_flwr.atomic_file import replacing
from zerofl_flwr.errors import DataError
from zerofl_flwr.model_arrays import Array

_MAGIC = b"lean-flwr slots 1\n"
_ALIGNMENT = 65_536
"""Header and slots start at multiples of this, at which every platform can map."""


class SlotFile:
    """A file of arrays of one shape and dtype.

    The process holds no map of it between two accesses, so that its resident memory does not grow
    with the file.

    Parameters
    ----------
    path : Path
        Where it is; see :meth:`create` and :meth:`open`.
    shape : tuple of int
        Of the array in each slot.
    dtype : numpy dtype
        Of its elements.
    count : int
        Slots that the file has.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], *, count: int
    ) -> None:
        self.path = path
        self.count = count
        self._shape = shape
        self._dtype = dtype
        self._stride = _slot_bytes(shape, dtype)

    @classmethod
    def create(cls, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SlotFile:
        """Make a file without slots; it takes the place of one that is there.

        Raises
        ------
        DataError
            If the file cannot be written.
        """
        header = _MAGIC + _describe(shape, dtype)
        try:
            with replacing(path) as file:
                file.write(header.ljust(_ALIGNMENT, b"\0"))
        except OSError as error:
            raise DataError(f"cannot create {path}: {error}") from error
        return cls(path, shape, dtype, count=0)

    @classmethod
    def open(cls, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> SlotFile:
        """Open a file that :meth:`create` made.

        Raises
        ------
        DataError
            If there is none, or it was made for another shape or dtype, or is something else.
        """
        try:
            with path.open("rb") as file:
                header = file.read(_ALIGNMENT)
            size = path.stat().st_size
        except FileNotFoundError:
            raise DataError(f"there is no {path}") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        if len(header) < _ALIGNMENT or not header.startswith(_MAGIC):
            raise DataError(f"{path} is cut short, or no file of slots")
        found, expected = header[len(_MAGIC) :].rstrip(b"\0"), _describe(shape, dtype)
        if found != expected:
            raise DataError(
                f"{path} holds arrays of {found.decode(errors='replace')}, expected "
                f"{expected.decode()}"
            )
        return cls(path, shape, dtype, count=(size - _ALIGNMENT) // _slot_bytes(shape, dtype))

    def add_slot(self) -> int:
        """Make the file longer by one slot and return its number.

        Raises
        ------
        DataError
            If the disk is full.
        """
        start = _ALIGNMENT + self.count * self._stride
        try:
            with self.path.open("r+b") as file:
                if hasattr(os, "posix_fallocate"):
                    # A hole that the disk has no room for would kill whoever writes to its map.
                    os.posix_fallocate(file.fileno(), start, self._stride)
                else:
                    file.truncate(start + self._stride)
        except OSError as error:
            raise DataError(f"cannot make {self.path} longer: {error}") from error
        self.count += 1
        return self.count - 1

    def write(self, slot: int, values: Array) -> None:
        """Write an array of the file's shape to a slot; it is on disk after :meth:`flush`.

        Raises
        ------
        DataError
            If the file has become shorter or is gone.
        """
        np.copyto(self._map(slot, writable=True), values)

    def read(self, slot: int, out: Array) -> None:
        """Copy a slot to an array of the file's shape.

        Raises
        ------
        DataError
            If the file has become shorter or is gone.
        """
        np.copyto(out, self._map(slot))

    def read_row(self, slot: int, row: int) -> Array:
        """Return a copy of one row, ``values[row]``, of a slot.

        Raises
        ------
        DataError
            If the file has become shorter or is gone.
        """
        return np.array(self._map(slot)[row])

    def checksum(self, slot: int) -> int:
        """Return the CRC-32 of a slot's array.

        Raises
        ------
        DataError
            If the file has become shorter or is gone.
        """
        return zlib.crc32(self._map(slot).data)

    def flush(self) -> None:
        """Return when everything written is on the disk.

        Raises
        ------
        DataError
            If the disk fails.
        """
        try:
            with self.path.open("r+b") as file:
                os.fsync(file.fileno())
            _flush_folder(self.path.parent)
        except OSError as error:
            raise DataError(f"cannot flush {self.path} to the disk: {error}") from error

    def _map(self, slot: int, *, writable: bool = False) -> np.memmap[Any, Any]:
        start = _ALIGNMENT + slot * self._stride
        try:
            if self.path.stat().st_size < start + self._stride:  # writing would make it longer
                raise DataError(f"{self.path} is too short for its slot {slot}")
            return np.memmap(
                self.path,
                dtype=self._dtype,
                mode="r+" if writable else "r",
                offset=start,
                shape=self._shape,
            )
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"slot {slot} of {self.path} cannot be reached: {error}") from error


def _slot_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    size = int(np.prod(shape)) * dtype.itemsize
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT


def _describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    return json.dumps({"shape": list(shape), "dtype": dtype.str}).encode()


def _flush_folder(folder: Path) -> None:
    """Make the file's name as lasting as its content, where a folder can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
