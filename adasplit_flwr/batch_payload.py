"""Batches of samples stacked into one payload: what activations and gradients have in common.

A payload (:mod:`zerofl_flwr.payload`) of three entries or more, in this order:

=============  ==================================================================================
``<values>``   ``(n, *sample shape)``, float32 or float16: the samples of all batches, one batch
               after the other; CSR where that makes the message smaller
others         of the caller's, e.g. one label per sample
batch-ids      ``(batches,)``, uint32: each batch's index within the exchange, from 0
batch-sizes    ``(batches,)``, uint32: samples of each batch; their sum is n
=============  ==================================================================================

Its meta scalars are ``round`` and ``precision``.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.csr_wire import csr_nbytes, wire_dtype
from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.payload import Entry, Payload, SparseArray, WireArray, decode, encode

PRECISIONS = ("float32", "float16")
"""Types of the samples on the wire."""
BATCH_COUNTERS = _IDS, _SIZES = "batch-ids", "batch-sizes"
"""The last entries of every such payload, by which it can be told from one of weights."""
_COUNTER = np.dtype("uint32")
_OVERHEAD_BYTES = 8192  # the header, and those of the arrays where they come as .npy
_CSR_OVERHEAD_BYTES = 512  # at most, around the two arrays that CSR has more than dense ones


@dataclass(frozen=True, eq=False)
class StackedBatches:
    """What came in a payload, checked.

    Parameters
    ----------
    values : NDArray of float32, shape (n, *sample_shape)
        May be read-only.
    others : dict of str to NDArray
        The caller's entries, of shape (n,) and the expected types.
    sizes : list of int
        Samples of each batch.
    """

    values: NDArray[np.float32]
    others: dict[str, NDArray[Any]]
    sizes: list[int]

    def split(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut an array of n samples into the batches' views."""
        return np.split(array, np.cumsum(self.sizes)[:-1]) if self.sizes else []


@dataclass(frozen=True)
class BatchPayload:
    """One kind of such payloads, on one of its ways.

    Parameters
    ----------
    values : str
        Name of the entry that holds the samples, e.g. ``"activations"``.
    sender : str
        Who sends it, named in every error.
    others : mapping of str to np.dtype
        The caller's entries by name, each of shape (n,), with their types on the wire.
    """

    values: str
    sender: str
    others: Mapping[str, np.dtype[Any]]

    def write(
        self,
        batches: Sequence[tuple[int, NDArray[Any]]],
        others: Mapping[str, NDArray[Any]],
        *,
        server_round: int,
        precision: str,
    ) -> list[NDArray[Any]]:
        """Stack and encode batches of (id, samples).

        Raises
        ------
        PayloadError
            There is no batch; ids are out of range or occur twice; samples are not float32, not
            finite, too large for `precision`, or of different shapes. The batch is named.
        SettingsError
            `precision` is unknown.
        """
        if precision not in PRECISIONS:
            raise SettingsError(unknown_name("precision", precision, PRECISIONS))
        ids = self._checked_ids([batch_id for batch_id, _ in batches])
        stacked = self._stack(batches, precision)
        sizes = np.array([len(values) for _, values in batches], _COUNTER)
        cast = {name: others[name].astype(dtype) for name, dtype in self.others.items()}
        return self._encoded(_compact(stacked), cast, ids, sizes, server_round, precision)

    def blank(
        self,
        sizes: Sequence[int],
        sample_shape: tuple[int, ...],
        *,
        server_round: int,
        precision: str,
    ) -> list[NDArray[Any]]:
        """Return a payload of zeros as large as :meth:`write` makes one at most.

        It is that large where the samples travel densely. Zeros take no memory until they are read.
        """
        total, counters = sum(sizes), np.array(sizes, _COUNTER)
        values = np.zeros((total, *sample_shape), precision)
        others = {name: np.zeros(total, dtype) for name, dtype in self.others.items()}
        return self._encoded(values, others, counters, counters, server_round, precision)

    def read(
        self,
        arrays: Sequence[WireArray],
        *,
        server_round: int,
        sample_shape: tuple[int, ...],
        batch_ids: Sequence[int],
        max_batch_size: int,
        max_samples: int | None = None,
    ) -> StackedBatches:
        """Decode a payload, or refuse it as a whole.

        What it takes is bounded by the expectations before it is parsed, and nothing is made dense
        before its shape is known good. `max_samples` bounds all batches together; without it, they
        may all have `max_batch_size`.

        Raises
        ------
        PayloadError
            Naming the sender, the entry and the field at fault.
        """
        samples = len(batch_ids) * max_batch_size
        if max_samples is not None:
            samples = min(samples, max_samples)
        sample_bytes = math.prod(sample_shape) * 4 + sum(d.itemsize for d in self.others.values())
        limit = samples * sample_bytes + len(batch_ids) * 2 * _COUNTER.itemsize + _OVERHEAD_BYTES
        payload = decode(arrays, None, sender=self.sender, max_bytes=limit)
        precision = self._check_header(payload, server_round)
        entries = {entry.name: entry for entry in payload.entries}
        self._check_batch_ids(self._vector(entries[_IDS], _COUNTER), batch_ids)
        sizes = self._read_sizes(entries[_SIZES], len(batch_ids), max_batch_size, samples)
        others = {
            name: self._vector(entries[name], dtype, sum(sizes))
            for name, dtype in self.others.items()
        }
        return StackedBatches(
            self._read_values(entries[self.values], precision, sum(sizes), sample_shape),
            others,
            sizes,
        )

    def _encoded(
        self,
        values: NDArray[Any] | SparseArray,
        others: Mapping[str, NDArray[Any]],
        ids: NDArray[np.uint32],
        sizes: NDArray[np.uint32],
        server_round: int,
        precision: str,
    ) -> list[NDArray[Any]]:
        entries = [
            Entry(self.values, values),
            *(Entry(name, array) for name, array in others.items()),
            Entry(_IDS, ids),
            Entry(_SIZES, sizes),
        ]
        return encode(entries, {"round": server_round, "precision": precision})

    def refuse(self, entry: str | None, field: str, reason: str) -> PayloadError:
        """Build the error for a fault in an entry's field."""
        return PayloadError(reason, sender=self.sender, layer=entry, field=field)

    def _checked_ids(self, ids: list[int]) -> NDArray[np.uint32]:
        if not ids:
            raise self.refuse(_IDS, "data", "there is no batch to send")
        for batch_id in ids:
            if not 0 <= batch_id < 2**32:
                raise self.refuse(_IDS, "data", f"batch {batch_id}: ids are from 0 to 2**32 - 1")
        if len(set(ids)) != len(ids):
            raise self.refuse(_IDS, "data", f"ids occur twice in {reprlib.repr(sorted(ids))}")
        return np.array(ids, np.uint32)

    def _stack(self, batches: Sequence[tuple[int, NDArray[Any]]], precision: str) -> NDArray[Any]:
        sample_shape = batches[0][1].shape[1:]
        for batch_id, values in batches:
            if values.dtype != np.float32:
                reason = f"batch {batch_id}: float32 expected, {values.dtype} came"
                raise self.refuse(self.values, "dtype", reason)
            if not values.ndim or not len(values) or values.shape[1:] != sample_shape:
                reason = (
                    f"batch {batch_id}: one sample or more of shape {sample_shape} expected, "
                    f"an array of shape {values.shape} came"
                )
                raise self.refuse(self.values, "shape", reason)
        stacked = np.empty((sum(len(values) for _, values in batches), *sample_shape), precision)
        start = 0
        for batch_id, values in batches:
            part = stacked[start : start + len(values)]
            with np.errstate(over="ignore"):
                part[...] = values
            if not np.isfinite(part).all():
                finite = np.isfinite(values).all()
                what = f"too large for {precision}" if finite else "not finite"
                raise self.refuse(self.values, "data", f"batch {batch_id}: values are {what}")
            start += len(values)
        return stacked

    def _check_header(self, payload: Payload, server_round: int) -> str:
        """Return the precision, after what the payload says about itself was held against it."""
        known = [self.values, *self.others, _IDS, _SIZES]
        names = [entry.name for entry in payload.entries]
        if names != known:
            reason = f"entries {known} expected, {reprlib.repr(names)} came"
            raise self.refuse(None, "layers", reason)
        for entry in payload.entries:
            if entry.content != "weights":
                raise self.refuse(entry.name, "content", f"weights expected, {entry.content} came")
        came = payload.meta.get("round")
        if type(came) is not int or came != server_round:
            reason = f"round {server_round} expected, {reprlib.repr(came)} came"
            raise self.refuse(None, "round", reason)
        precision = payload.meta.get("precision")
        if not isinstance(precision, str) or precision not in PRECISIONS:
            reason = f"one of {', '.join(PRECISIONS)} expected, {reprlib.repr(precision)} came"
            raise self.refuse(None, "precision", reason)
        return precision

    def _vector(
        self, entry: Entry, dtype: np.dtype[Any], length: int | None = None
    ) -> NDArray[Any]:
        array = entry.data
        if not isinstance(array, np.ndarray):
            reason = f"dense expected, {type(array).__name__} came"
            raise self.refuse(entry.name, "encoding", reason)
        if array.dtype != wire_dtype(dtype):
            raise self.refuse(entry.name, "dtype", f"{dtype} expected, {array.dtype} came")
        if array.ndim != 1 or (length is not None and length != array.size):
            expected = "one dimension" if length is None else f"shape {(length,)}"
            raise self.refuse(entry.name, "shape", f"{expected} expected, {array.shape} came")
        return array.astype(dtype, copy=False)

    def _check_batch_ids(self, came: NDArray[Any], expected: Sequence[int]) -> None:
        ids = came.tolist()
        if ids == list(expected):
            return
        counts, known = Counter(ids), set(expected)
        wrong = [(batch_id, "came twice") for batch_id, count in counts.items() if count > 1]
        wrong += [(batch_id, "was not asked for") for batch_id in counts if batch_id not in known]
        wrong += [(batch_id, "is missing") for batch_id in expected if batch_id not in counts]
        if wrong:
            raise self.refuse(_IDS, "data", f"batch {wrong[0][0]} {wrong[0][1]}")
        reason = f"the order {reprlib.repr(list(expected))} expected, {reprlib.repr(ids)} came"
        raise self.refuse(_IDS, "data", reason)

    def _read_sizes(
        self, entry: Entry, batches: int, max_batch_size: int, max_samples: int
    ) -> list[int]:
        sizes: list[int] = self._vector(entry, _COUNTER, batches).tolist()
        for size in sizes:
            if not 1 <= size <= max_batch_size:
                reason = f"1 to {max_batch_size} samples a batch expected, {size} came"
                raise self.refuse(_SIZES, "data", reason)
        if (together := sum(sizes)) > max_samples:
            reason = f"the batches have {together} samples together, at most {max_samples} expected"
            raise self.refuse(_SIZES, "data", reason)
        return sizes

    def _read_values(
        self, entry: Entry, precision: str, samples: int, sample_shape: tuple[int, ...]
    ) -> NDArray[np.float32]:
        data = entry.data
        if not isinstance(data, np.ndarray | SparseArray):
            reason = f"dense or CSR expected, {type(data).__name__} came"
            raise self.refuse(entry.name, "encoding", reason)
        if data.dtype != wire_dtype(precision):
            raise self.refuse(entry.name, "dtype", f"{precision} expected, {data.dtype} came")
        if len(data.shape) != 1 + len(sample_shape) or data.shape[1:] != sample_shape:
            reason = f"samples of shape {sample_shape} expected, an array of {data.shape} came"
            raise self.refuse(entry.name, "shape", reason)
        if data.shape[0] != samples:
            reason = f"the batches have {samples} samples together, {data.shape[0]} came"
            raise self.refuse(_SIZES, "data", reason)
        dense = data.to_dense() if isinstance(data, SparseArray) else data
        return dense.astype(np.float32, copy=False)


def _compact(array: NDArray[Any]) -> NDArray[Any] | SparseArray:
    """Make a sparse array of one, unless CSR would not make the message smaller."""
    # At least so many positions are stored, and -0.0 too: then it is looked at once more.
    if not _is_smaller(array, int(np.count_nonzero(array))):
        return array
    sparse = SparseArray.from_dense(array)
    return sparse if _is_smaller(array, sparse.nnz) else array


def _is_smaller(array: NDArray[Any], nnz: int) -> bool:
    return csr_nbytes(array.shape, array.dtype, nnz) + _CSR_OVERHEAD_BYTES < array.nbytes
