"""A tensor of which only some positions are stored: scipy CSR over its 2-D view."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix, get_index_dtype

from zerofl_flwr.errors import PayloadError


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the 2-D view of a tensor's shape: ``(out, in * kh * kw)`` for a convolution.

    Parameters
    ----------
    shape : tuple of int
        Any shape: ``()`` becomes ``(1, 1)``, ``(n,)`` becomes ``(1, n)``, and
        ``(out, ...)`` becomes ``(out, prod(...))``. The C-order flat position is the same in both.

    Returns
    -------
    tuple of int
        Rows and columns.
    """
    if len(shape) < 2:
        return (1, math.prod(shape))
    return (shape[0], math.prod(shape[1:]))


@dataclass(frozen=True, eq=False)
class SparseArray:
    """The stored positions of a tensor and their values.

    A stored zero is kept and counts as sent; a position that is not stored was not sent.

    Parameters
    ----------
    shape : tuple of int
        Shape of the tensor.
    matrix : scipy.sparse.csr_matrix
        CSR of the tensor's 2-D view (see :func:`matrix_shape`), columns ascending and without
        duplicates within each row. int32 indices, or int64 where int32 is too narrow. float16
        values stay float16, although scipy cannot compute with them.

    Raises
    ------
    PayloadError
        `matrix` has another shape than the 2-D view, or is not in canonical order.
    """

    shape: tuple[int, ...]
    matrix: csr_matrix[Any]

    def __post_init__(self) -> None:
        expected = matrix_shape(self.shape)
        if self.matrix.shape != expected:
            raise PayloadError(
                f"shape {self.shape} has the 2-D view {expected}, not {self.matrix.shape}",
                field="shape",
            )
        if not self.matrix.has_canonical_format:
            raise PayloadError("columns must ascend strictly within each row", field="indices")

    @classmethod
    def from_indices(
        cls, flat_indices: ArrayLike, values: NDArray[Any], shape: tuple[int, ...]
    ) -> SparseArray:
        """Store `values` at the C-order flat positions `flat_indices` of a tensor.

        Parameters
        ----------
        flat_indices : array_like of int, shape (k,)
            Strictly ascending, each in ``[0, prod(shape))``.
        values : NDArray, shape (k,)
            One value per position; not copied where it is contiguous.
        shape : tuple of int
            Shape of the tensor.

        Raises
        ------
        PayloadError
            The positions are not ascending or out of range, or the lengths differ.
        """
        flat = _checked_positions(flat_indices, math.prod(shape))
        if values.shape != flat.shape:
            raise PayloadError(
                f"{flat.size} positions need as many values in one dimension, {values.shape} came",
                field="values",
            )
        rows, columns = matrix_shape(shape)
        index_dtype = get_index_dtype(maxval=max(flat.size, columns))
        row_starts = np.arange(rows + 1, dtype=np.int64) * columns
        indptr = np.searchsorted(flat, row_starts)
        indices = flat - np.repeat(row_starts[:-1], np.diff(indptr))
        return cls.from_csr(
            np.ascontiguousarray(values),
            indices.astype(index_dtype),
            indptr.astype(index_dtype),
            shape,
        )

    @classmethod
    def from_csr(
        cls,
        data: NDArray[Any],
        indices: NDArray[Any],
        indptr: NDArray[Any],
        shape: tuple[int, ...],
    ) -> SparseArray:
        """Wrap CSR arrays that are known to be canonical; nothing is copied or checked."""
        matrix = csr_matrix((data, indices, indptr), shape=matrix_shape(shape), copy=False)
        matrix.has_canonical_format = True
        return cls(shape, matrix)

    @classmethod
    def from_dense(cls, array: NDArray[Any]) -> SparseArray:
        """Store every position of `array` whose bits are not all zero, so also ``-0.0``.

        ``SparseArray.from_dense(x).to_dense()`` has the bits of `x`, whatever they are.

        Parameters
        ----------
        array : NDArray of bool, integer or float
            Any shape, contiguous or not.
        """
        flat = np.asarray(array, order="C").reshape(-1)
        bits = flat.view(np.dtype(f"u{flat.dtype.itemsize}"))
        positions = np.flatnonzero(bits)
        return cls.from_indices(positions, flat[positions], array.shape)

    @property
    def flat_indices(self) -> NDArray[np.int64]:
        """Stored positions as ascending C-order flat indices, int64, shape ``(nnz,)``."""
        rows, columns = self.matrix.shape
        row_starts = np.arange(rows, dtype=np.int64) * columns
        return np.repeat(row_starts, np.diff(self.matrix.indptr)) + self.matrix.indices

    @property
    def values(self) -> NDArray[Any]:
        """Stored values in the order of `flat_indices`, shape ``(nnz,)``; not a copy."""
        data: NDArray[Any] = self.matrix.data
        return data

    @property
    def nnz(self) -> int:
        """Number of stored positions, stored zeros included."""
        return int(self.matrix.data.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the values."""
        return self.values.dtype

    def to_dense(self) -> NDArray[Any]:
        """Return the tensor with zeros where nothing is stored; a new array."""
        # Not matrix.toarray(): it cannot do float16, and it turns -0.0 into 0.0.
        dense = np.zeros(self.shape, self.dtype)
        dense.reshape(-1)[self.flat_indices] = self.values
        return dense


def _checked_positions(flat_indices: ArrayLike, numel: int) -> NDArray[np.int64]:
    flat = np.asarray(flat_indices)
    if flat.ndim != 1 or (flat.size and flat.dtype.kind not in "iu"):
        raise PayloadError(
            f"positions must be a 1-D integer array, got {flat.dtype} of shape {flat.shape}",
            field="indices",
        )
    flat = flat.astype(np.int64, copy=False)
    if flat.size and (flat[0] < 0 or flat[-1] >= numel or (flat[1:] <= flat[:-1]).any()):
        raise PayloadError(
            f"positions must ascend strictly within 0 to {numel - 1}", field="indices"
        )
    return flat
