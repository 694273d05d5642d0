"""The wire format of both methods: a list of arrays that describes itself.

``encode`` turns entries into numpy arrays, which Flower carries as ``Parameters`` or as an
``ArrayRecord``; ``decode`` checks and reads them. The first array is a 1-D uint8 array of UTF-8
JSON: magic, protocol version, meta scalars, and per layer its name, shape, data type, encoding,
content, and for CSR the number of stored positions. The layers' arrays follow in order:

========  ======================================================================================
encoding  arrays
========  ======================================================================================
dense     one, in the tensor's shape; the header says whether it stands for a sparse one
csr       three: data ``(nnz,)``, indices ``(nnz,)``, indptr ``(rows + 1,)`` of the 2-D view
          ``(out, in * kh * kw)``; the index arrays in the narrowest unsigned type that fits
values    one of shape ``(k,)``: the values at a pattern of positions that both sides know
absent    none: the tensor was not sent
========  ======================================================================================

Everything is little-endian, nothing is pickled.

>>> import numpy as np
>>> weights = np.zeros((2, 100), np.float32)
>>> weights[1, 3] = 0.5
>>> arrays = encode([Entry("fc.weight", SparseArray.from_dense(weights))], {"examples": 12})
>>> [array.dtype.name for array in arrays]
['uint8', 'float32', 'uint8', 'uint8']
>>> payload = decode(arrays, [TensorSpec((2, 100), np.dtype("float32"))], sender="client 3")
>>> payload.meta["examples"], payload.entries[0].data.nnz
(12, 1)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.csr_wire import csr_nbytes, wire_dtype, write_csr
from zerofl_flwr.npy import read_npy
from zerofl_flwr.payload_decode import WireArray, decode, is_payload
from zerofl_flwr.payload_entries import (
    Content,
    Entry,
    MetaValue,
    NotSent,
    Payload,
    TensorSpec,
    Values,
)
from zerofl_flwr.payload_header import PROTOCOL_VERSION, LayerHeader, write_header
from zerofl_flwr.sparse_array import SparseArray, matrix_shape

__all__ = [
    "PROTOCOL_VERSION",
    "Content",
    "Entry",
    "MetaValue",
    "NotSent",
    "Payload",
    "SparseArray",
    "TensorSpec",
    "Values",
    "WireArray",
    "decode",
    "encode",
    "is_payload",
    "matrix_shape",
    "read_npy",
]


def encode(
    entries: Sequence[Entry],
    meta: Mapping[str, MetaValue] | None = None,
    *,
    force_csr: bool = False,
) -> list[NDArray[Any]]:
    """Turn entries into the arrays that travel.

    A `SparseArray` travels as CSR, or dense and zero-filled where CSR would not be smaller. Such
    a layer (``Entry.sparse`` with a dense array) has lost which zeros were stored: its receiver
    counts as sent what is not zero.

    Parameters
    ----------
    entries : sequence of Entry
        One per tensor of the model, in order. Values are not checked for NaN here: the receiver
        refuses them, naming the sender.
    meta : mapping of str to str, int, float or bool, optional
        Scalars to send along. Python's own types; floats finite, ints within 64 bits.
    force_csr : bool, default False
        Send every `SparseArray` as CSR, even where that is larger.

    Returns
    -------
    list of NDArray
        The header, uint8, then the layers' arrays, C-contiguous. They may share memory with the
        entries.

    Raises
    ------
    PayloadError
        A name is empty, too long, unprintable or used twice, a data type cannot travel, or a
        value of `meta` is not a scalar that travels.
    """
    layers: list[LayerHeader] = []
    arrays: list[NDArray[Any]] = []
    for entry in entries:
        layer, layer_arrays = _encode_entry(entry, force_csr)
        layers.append(layer)
        arrays.extend(layer_arrays)
    return [write_header(layers, meta or {}), *arrays]


def _encode_entry(entry: Entry, force_csr: bool) -> tuple[LayerHeader, list[NDArray[Any]]]:
    data = entry.data
    if isinstance(data, NotSent):
        return _describe(entry, data.dtype, "absent"), []
    if isinstance(data, Values):
        return _describe(entry, data.values.dtype, "values"), [_to_wire(data.values)]
    if isinstance(data, SparseArray):
        csr_bytes = csr_nbytes(data.shape, data.dtype, data.nnz)
        if force_csr or csr_bytes < math.prod(data.shape) * data.dtype.itemsize:
            return _describe(entry, data.dtype, "csr", nnz=data.nnz), write_csr(data)
        data = data.to_dense()
    return _describe(entry, data.dtype, "dense", sparse=entry.sparse), [_to_wire(data)]


def _describe(
    entry: Entry,
    dtype: np.dtype[Any],
    encoding: str,
    *,
    nnz: int | None = None,
    sparse: bool | None = None,
) -> LayerHeader:
    shape = tuple(int(size) for size in entry.data.shape)
    return LayerHeader(entry.name, shape, dtype.name, encoding, entry.content, nnz, sparse)


def _to_wire(array: NDArray[Any]) -> NDArray[Any]:
    # Not ascontiguousarray: it would turn a scalar into shape (1,).
    return np.asarray(array, dtype=wire_dtype(array.dtype), order="C")
