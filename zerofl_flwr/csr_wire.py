"""CSR arrays as they travel: narrow unsigned index arrays, checked before they are used."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import get_index_dtype

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.sparse_array import SparseArray, matrix_shape


class Refuse(Protocol):
    """Builds the error for a faulty field, naming the sender and the layer that it knows."""

    def __call__(self, field: str, reason: str) -> PayloadError:
        """Return the error; the caller raises it."""
        ...


def index_dtypes(shape: tuple[int, ...], nnz: int) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the data types of ``indices`` and ``indptr`` on the wire.

    Each is the narrowest unsigned type that holds its largest possible value: the number of
    columns of the 2-D view minus one, and `nnz`.
    """
    columns = matrix_shape(shape)[1]
    return wire_dtype(np.min_scalar_type(max(columns - 1, 0))), wire_dtype(np.min_scalar_type(nnz))


def wire_dtype(dtype: np.dtype[Any] | str) -> np.dtype[Any]:
    """Return `dtype` in the byte order of the wire, which is little-endian."""
    return np.dtype(dtype).newbyteorder("<")


def csr_nbytes(shape: tuple[int, ...], dtype: np.dtype[Any], nnz: int) -> int:
    """Return the bytes that the three CSR arrays of a layer take."""
    indices, indptr = index_dtypes(shape, nnz)
    rows = matrix_shape(shape)[0]
    return nnz * (dtype.itemsize + indices.itemsize) + (rows + 1) * indptr.itemsize


def write_csr(array: SparseArray) -> list[NDArray[Any]]:
    """Return ``[data, indices, indptr]`` with the data types of the wire; data is not copied."""
    indices_dtype, indptr_dtype = index_dtypes(array.shape, array.nnz)
    return [
        array.values.astype(wire_dtype(array.dtype), copy=False),
        array.matrix.indices.astype(indices_dtype),
        array.matrix.indptr.astype(indptr_dtype),
    ]


def read_csr(
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    *,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nnz: int,
    refuse: Refuse,
) -> SparseArray:
    """Check the three arrays of a layer and build the sparse array; `data` is not copied.

    Parameters
    ----------
    data : NDArray, shape (nnz,)
        Values of type `dtype`; whether they are finite is checked by :func:`check_values`.
    indices : NDArray of unsigned int, shape (nnz,)
        Columns, ascending strictly within each row.
    indptr : NDArray of unsigned int, shape (rows + 1,)
        Where each row starts in `indices`.
    shape : tuple of int
        Shape of the tensor, known good.
    dtype : np.dtype
        Data type of the values, known good.
    nnz : int
        Number of stored positions that the header claims.
    refuse : Refuse
        Builds the error.

    Raises
    ------
    PayloadError
        Any of this does not hold.
    """
    rows, columns = matrix_shape(shape)
    indices_dtype, indptr_dtype = index_dtypes(shape, nnz)
    check_array(data, "data", (nnz,), dtype, refuse)
    check_array(indices, "indices", (nnz,), indices_dtype, refuse)
    check_array(indptr, "indptr", (rows + 1,), indptr_dtype, refuse)
    check_values(data, "data", refuse)
    if indptr[0] != 0 or indptr[-1] != nnz:
        raise refuse("indptr", f"must run from 0 to {nnz}, runs from {indptr[0]} to {indptr[-1]}")
    if (indptr[1:] < indptr[:-1]).any():
        raise refuse("indptr", "must not descend")
    if nnz and int(indices.max()) >= columns:
        raise refuse("indices", f"column {indices.max()} is out of range, there are {columns}")
    ascends = indices[1:] > indices[:-1]
    inner_starts = indptr[1:-1][(indptr[1:-1] > 0) & (indptr[1:-1] < nnz)]
    ascends[inner_starts.astype(np.int64) - 1] = True  # between two rows, any order is right
    if not ascends.all():
        raise refuse("indices", "columns must ascend strictly within each row")
    native = get_index_dtype(maxval=max(nnz, columns))
    return SparseArray.from_csr(data, indices.astype(native), indptr.astype(native), shape)


def check_array(
    array: NDArray[Any],
    field: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    refuse: Refuse,
) -> None:
    """Refuse an array of another data type or shape; the error names `field`."""
    if array.dtype != wire_dtype(dtype):
        raise refuse(field, f"data type {dtype} expected, {array.dtype} came")
    if array.shape != shape:
        raise refuse(field, f"shape {shape} expected, {array.shape} came")


def check_values(array: NDArray[Any], field: str, refuse: Refuse) -> None:
    """Refuse NaN and infinity, and bools whose byte is neither 0 nor 1."""
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise refuse(field, "a bool must be 0 or 1")
    if array.dtype.kind != "f":
        return
    # A sum is finite only if every term is, so this needs no temporary. It can also overflow
    # over finite values: only then is each of them looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype=np.float32 if array.dtype.itemsize == 2 else None)
    if math.isfinite(total):
        return
    wrong = np.flatnonzero(~np.isfinite(array))
    if wrong.size:
        raise refuse(
            field,
            f"{wrong.size} values are not finite; the first is {array.reshape(-1)[wrong[0]]} "
            f"at {wrong[0]}",
        )
