"""The clients' masks with their Adam moments: the latest used in memory, the others in a file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from adasplit_flwr.committed_slots import CommittedSlots
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.model_arrays import Array

FILE_NAME = "server-masks.bin"
DEFAULT_BUDGET_BYTES = 1024 * 10**6

_ROWS = 3  # mask, first moment, second moment
_RECORD = "record/"


@dataclass
class MaskRecord:
    """One client's mask as it trains; valid until the store is asked for another client's.

    Parameters
    ----------
    values : Tensor, shape (3, P)
        Mask, first and second moment.
    steps : int
        Steps that the mask has taken.
    """

    values: torch.Tensor
    steps: int

    @property
    def mask(self) -> torch.Tensor:
        """The real-valued mask, shape (P,)."""
        return self.values[0]

    @property
    def exp_avg(self) -> torch.Tensor:
        """The first moment, shape (P,)."""
        return self.values[1]

    @property
    def exp_avg_sq(self) -> torch.Tensor:
        """The second moment, shape (P,)."""
        return self.values[2]


class MaskStore:
    """A record a client: its mask, both Adam moments, and a count of steps.

    With a folder, the records that were used last stay in memory and the others in one file of it,
    ``server-masks.bin``, which a store that is new begins afresh. For a checkpoint: :meth:`commit`,
    put the table into the checkpoint, and once that is on disk call :meth:`committed`. Whenever the
    process dies, the table of the checkpoint that is there finds its records unharmed. Without
    :meth:`committed` that holds for all tables so far, and the file grows by what changes between
    them.

    Parameters
    ----------
    length : int
        Elements of a mask, P.
    dtype : torch.dtype
        float32 or float64.
    make : callable
        Gives the mask, shape (P,), with which a client starts; the same whenever it is asked.
    folder : Path, optional
        Where the file goes. Without one, all records stay in memory and in the tables: 36 MB a
        client for LeNet.
    memory_budget_bytes : int
        With a folder, memory for records, each of ``3 * P`` elements; at least one must fit.

    Raises
    ------
    SettingsError
        If the length, the dtype or the budget cannot work.
    """

    def __init__(
        self,
        length: int,
        dtype: torch.dtype,
        *,
        make: Callable[[int], torch.Tensor],
        folder: Path | None = None,
        memory_budget_bytes: int = DEFAULT_BUDGET_BYTES,
    ) -> None:
        if length < 1:
            raise SettingsError(f"a mask needs at least 1 element, not {length}")
        if dtype not in (torch.float32, torch.float64):
            raise SettingsError(f"masks are float32 or float64, not {dtype}")
        self.length = length
        self.dtype = dtype
        self._make = make
        self._budget = memory_budget_bytes
        self._record_bytes = record_bytes(length, dtype)
        if folder is not None and memory_budget_bytes < self._record_bytes:
            raise SettingsError(
                f"memory_budget_bytes is {memory_budget_bytes}; one client's mask and moments take "
                f"{self._record_bytes}"
            )
        self._resident: OrderedDict[int, MaskRecord] = OrderedDict()  # the latest used last
        self._unsaved: set[int] = set()  # resident ones whose slot is out of date or missing
        self._slots: CommittedSlots | None = None
        if folder is not None:
            shape = (_ROWS, length)
            self._slots = CommittedSlots(folder / FILE_NAME, shape, _numpy_dtype(dtype))

    def check_fits(self, length: int, dtype: torch.dtype) -> None:
        """Refuse a server part with another number of trainable parameters, or another dtype."""
        if (self.length, self.dtype) != (length, dtype):
            raise SettingsError(
                f"the store holds masks of {self.length} elements in {self.dtype}; the server part "
                f"has {length} trainable parameters in {dtype}"
            )

    def clients(self) -> list[int]:
        """Return the clients that have a mask of their own by now, ascending."""
        in_file = self._slots.clients() if self._slots else []
        return sorted({*in_file, *self._unsaved})

    def record(self, client: int) -> MaskRecord:
        """Return a client's record, to read or to change in place.

        A client that was never seen gets a fresh one, which is kept only after :meth:`changed`.

        Raises
        ------
        SettingsError
            If the client is no whole number from 0, or `make` gives something else than a mask.
        DataError
            If the file cannot be read or written.
        """
        _check_client(client)
        if client in self._resident:
            self._resident.move_to_end(client)
            return self._resident[client]
        values, steps = self._free_memory(), 0
        if self._slots is not None and client in self._slots:
            steps = self._slots.load(client, values.numpy())
        else:
            values[0] = self._fresh(client)
            values[1:] = 0
        self._resident[client] = MaskRecord(values, steps)
        return self._resident[client]

    def changed(self, client: int) -> None:
        """Take note that the record which :meth:`record` gave last was changed."""
        if client not in self._resident:
            raise SettingsError(f"the record of client {client} was not asked for before")
        self._unsaved.add(client)

    def mask(self, client: int) -> torch.Tensor:
        """Return a client's mask, shape (P,), only to be read; other records keep their place.

        Raises
        ------
        SettingsError
            If the client is no whole number from 0, or `make` gives something else than a mask.
        DataError
            If the file cannot be read.
        """
        _check_client(client)
        if client in self._resident:
            return self._resident[client].mask
        if self._slots is not None and client in self._slots:
            return torch.from_numpy(self._slots.load_row(client, 0))
        return self._fresh(client)

    def commit(self) -> dict[str, Array]:
        """Write what changed since the last commit, and return what finds all records again.

        Returns
        -------
        dict of str to ndarray
            With a folder, int64 columns ``clients``, ``slots``, ``steps`` and ``checksums``; their
            slots stay as they are until a later table was :meth:`committed`. Without a folder,
            ``clients``, ``steps``, and the records themselves: ``record/<client>``, shape (3, P).

        Raises
        ------
        DataError
            If the file cannot be written.
        """
        if self._slots is None:
            clients = self.clients()
            steps = [self._resident[client].steps for client in clients]
            return {
                "clients": np.array(clients, dtype=np.int64),
                "steps": np.array(steps, dtype=np.int64),
            } | {
                f"{_RECORD}{client}": self._resident[client].values.numpy().copy()
                for client in clients
            }
        for client in sorted(self._unsaved):
            self._save(client)
        return self._slots.commit()

    def committed(self) -> None:
        """Take note that the checkpoint with the last table is on disk: older ones may go."""
        if self._slots is not None:
            self._slots.committed()

    def restore(self, table: Mapping[str, Array]) -> None:
        """Put the store back to where a table was taken, reading records when they are needed.

        Parameters
        ----------
        table : mapping of str to ndarray
            As :meth:`commit` returned it.

        Raises
        ------
        DataError
            If the table is malformed or of another length or dtype, or the file is missing, too
            short, or of another length or dtype. Nothing has changed then. A record that does not
            match its checksum is refused when it is first read.
        """
        if self._slots is not None:
            self._slots.restore(table)
            self._resident.clear()
            self._unsaved.clear()
            return
        records = self._records_of(table)
        self._resident = OrderedDict(records)
        self._unsaved = set(records)

    def _records_of(self, table: Mapping[str, Array]) -> dict[int, MaskRecord]:
        names = {"clients", "steps"}
        if not names <= set(table):
            raise DataError(f"a table of masks holds clients and steps; got {', '.join(table)}")
        clients, steps = (np.asarray(table[name]).tolist() for name in ("clients", "steps"))
        names |= {f"{_RECORD}{client}" for client in clients}
        if names != set(table) or len(clients) != len(steps):
            raise DataError(
                "a table of masks without a file holds a record and a count of steps for each "
                f"client; got {', '.join(table)}"
            )
        expected = (_ROWS, self.length), _numpy_dtype(self.dtype)
        for client in clients:
            array = table[f"{_RECORD}{client}"]
            if (array.shape, array.dtype) != expected:
                raise DataError(
                    f"the mask of client {client} has shape {array.shape} and dtype "
                    f"{array.dtype}; expected {expected[0]} and {expected[1]}"
                )
        return {
            client: MaskRecord(torch.tensor(table[f"{_RECORD}{client}"]), taken)
            for client, taken in zip(clients, steps, strict=True)
        }

    def _free_memory(self) -> torch.Tensor:
        """Return memory for one more record, of the least recently used where it is all in use."""
        fits = (len(self._resident) + 1) * self._record_bytes <= self._budget
        if self._slots is None or fits:
            return torch.empty(_ROWS, self.length, dtype=self.dtype)
        oldest = next(iter(self._resident))
        if oldest in self._unsaved:
            self._save(oldest)
        return self._resident.pop(oldest).values

    def _save(self, client: int) -> None:
        record = self._resident[client]
        if self._slots is not None:
            self._slots.save(client, record.values.numpy(), record.steps)
        self._unsaved.discard(client)

    def _fresh(self, client: int) -> torch.Tensor:
        mask = self._make(client)
        if mask.shape != (self.length,) or mask.dtype is not self.dtype:
            raise SettingsError(
                f"the fresh mask of client {client} has shape {tuple(mask.shape)} and dtype "
                f"{mask.dtype}; expected ({self.length},) and {self.dtype}"
            )
        return mask


def record_bytes(length: int, dtype: torch.dtype) -> int:
    """Count the bytes of one client's mask of so many elements, with its moments."""
    return _ROWS * length * dtype.itemsize


def _check_client(client: int) -> None:
    if type(client) is not int or client < 0:
        raise SettingsError(f"a client is a whole number from 0, not {client!r}")


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[np.float32] | np.dtype[np.float64]:
    return np.dtype(np.float64) if dtype is torch.float64 else np.dtype(np.float32)
