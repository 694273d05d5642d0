"""Decoding of payloads: every field is checked before anything is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.csr_wire import Refuse, check_array, check_values, read_csr
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.npy import read_npy
from zerofl_flwr.payload_entries import Entry, NotSent, Payload, TensorSpec, Values
from zerofl_flwr.payload_header import ARRAY_COUNTS, LayerHeader, has_magic, read_header
from zerofl_flwr.sparse_array import SparseArray

WireArray = NDArray[Any] | bytes


def is_payload(arrays: Sequence[WireArray]) -> bool:
    """Say whether the first array is a header of this format, of whatever protocol version."""
    try:
        return bool(arrays) and has_magic(_load(arrays[0]))
    except PayloadError:
        return False


def decode(
    arrays: Sequence[WireArray],
    expected: Sequence[TensorSpec] | None,
    *,
    sender: str,
    pattern_sizes: Mapping[int, int] | None = None,
    max_bytes: int | None = None,
) -> Payload:
    """Read a payload, or refuse it as a whole.

    Dense layers, CSR values and `Values` share memory with `arrays` and may be read-only.

    Parameters
    ----------
    arrays : sequence of NDArray or bytes
        The header and the layers' arrays, each as an array or as the ``.npy`` bytes of one.
    expected : sequence of TensorSpec or None
        Shape and data type of each tensor of the receiver's model, in order. None takes the
        header's word for them, for a client that holds no model and trusts its server: a few bytes
        of CSR can then stand for a tensor that is too big to be made dense.
    sender : str
        Who sent it, e.g. ``"client 3"``; named in every error.
    pattern_sizes : mapping of int to int, optional
        Position in `expected` to the number of values of the pattern that both sides know there.
        A ``values`` layer elsewhere is refused.
    max_bytes : int, optional
        The most bytes that `arrays` may take together, checked before anything is parsed.

    Returns
    -------
    Payload
        One entry per tensor of the model, in order.

    Raises
    ------
    PayloadError
        Naming the sender, the layer and the field at fault.
    """
    _check_total(arrays, sender, max_bytes)
    if not arrays:
        raise PayloadError("an empty list came", sender=sender, field="header")
    layers, meta = read_header(_load(arrays[0], sender=sender, field="header"), sender=sender)
    if expected is None:
        expected = [TensorSpec(layer.shape, np.dtype(layer.dtype)) for layer in layers]
    _check_counts(layers, len(arrays) - 1, len(expected), sender)
    entries: list[Entry] = []
    start = 1
    for position, (layer, spec) in enumerate(zip(layers, expected, strict=True)):
        stop = start + ARRAY_COUNTS[layer.encoding]
        pattern_size = (pattern_sizes or {}).get(position)
        entries.append(_read_layer(layer, spec, arrays[start:stop], sender, pattern_size))
        start = stop
    return Payload(entries, meta)


def _check_total(arrays: Sequence[WireArray], sender: str, max_bytes: int | None) -> None:
    total = 0
    for index, array in enumerate(arrays):
        if not isinstance(array, (np.ndarray, bytes)):
            raise PayloadError(
                f"arrays[{index}] is a {type(array).__name__}, neither an ndarray nor bytes",
                sender=sender,
                field="arrays",
            )
        total += len(array) if isinstance(array, bytes) else array.nbytes
    if max_bytes is not None and total > max_bytes:
        raise PayloadError(
            f"{total} bytes came, at most {max_bytes} are accepted", sender=sender, field="arrays"
        )


def _check_counts(layers: list[LayerHeader], arrays: int, expected: int, sender: str) -> None:
    if len(layers) != expected:
        raise PayloadError(
            f"{expected} layers expected, {len(layers)} came", sender=sender, field="layers"
        )
    announced = sum(ARRAY_COUNTS[layer.encoding] for layer in layers)
    if announced != arrays:
        raise PayloadError(
            f"the header announces {announced} arrays, {arrays} came", sender=sender, field="arrays"
        )


def _read_layer(
    layer: LayerHeader,
    spec: TensorSpec,
    arrays: Sequence[WireArray],
    sender: str,
    pattern_size: int | None,
) -> Entry:
    def refuse(field: str, reason: str) -> PayloadError:
        return PayloadError(reason, sender=sender, layer=layer.name, field=field)

    if layer.shape != spec.shape:
        raise refuse("shape", f"{spec.shape} expected, {layer.shape} came")
    if np.dtype(layer.dtype) != spec.dtype:
        raise refuse("dtype", f"{spec.dtype} expected, {layer.dtype} came")
    if layer.encoding == "values" and pattern_size is None:
        raise refuse("encoding", "values came without positions, but no pattern is known here")
    fields = ("data", "indices", "indptr") if layer.encoding == "csr" else ("data",)
    loaded = [
        _load(array, sender=sender, layer=layer.name, field=field)
        for array, field in zip(arrays, fields, strict=False)
    ]
    data = _build(layer, spec, loaded, pattern_size, refuse)
    return Entry(layer.name, data, layer.content, sparse=bool(layer.sparse))


def _build(
    layer: LayerHeader,
    spec: TensorSpec,
    arrays: list[NDArray[Any]],
    pattern_size: int | None,
    refuse: Refuse,
) -> NDArray[Any] | SparseArray | Values | NotSent:
    if layer.encoding == "absent":
        return NotSent(spec.shape, spec.dtype)
    if layer.nnz is not None:
        data, indices, indptr = arrays
        return read_csr(
            data,
            indices,
            indptr,
            shape=spec.shape,
            dtype=spec.dtype,
            nnz=layer.nnz,
            refuse=refuse,
        )
    if layer.encoding == "values" and pattern_size is not None:
        check_array(arrays[0], "data", (pattern_size,), spec.dtype, refuse)
        check_values(arrays[0], "data", refuse)
        return Values(spec.shape, arrays[0])
    check_array(arrays[0], "data", spec.shape, spec.dtype, refuse)
    check_values(arrays[0], "data", refuse)
    return arrays[0]


def _load(
    array: WireArray, *, sender: str | None = None, layer: str | None = None, field: str = "data"
) -> NDArray[Any]:
    if not isinstance(array, bytes):
        return array
    try:
        return read_npy(array)
    except PayloadError as error:
        raise PayloadError(error.reason, sender=sender, layer=layer, field=field) from error
