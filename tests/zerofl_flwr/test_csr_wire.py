"""CSR arrays on the wire: narrow index types, and the checks when they come back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zerofl_flwr.csr_wire import check_values, csr_nbytes, index_dtypes, read_csr, write_csr
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.sparse_array import SparseArray


def refuse(field: str, reason: str) -> PayloadError:
    return PayloadError(reason, field=field)


@pytest.mark.parametrize(
    ("shape", "nnz", "indices", "indptr"),
    [
        ((), 1, "uint8", "uint8"),
        ((3, 0), 0, "uint8", "uint8"),
        ((2, 255), 255, "uint8", "uint8"),
        ((2, 256), 256, "uint8", "uint16"),
        ((2, 257), 0, "uint16", "uint8"),
        ((1, 65_535), 65_535, "uint16", "uint16"),
        ((1, 65_536), 65_536, "uint16", "uint32"),
        ((1, 65_537), 1, "uint32", "uint8"),
        ((1, 2**32), 2**32 - 1, "uint32", "uint32"),
        ((1, 2**32 + 1), 2**32, "uint64", "uint64"),
    ],
)
def test_index_types_are_the_narrowest(
    shape: tuple[int, ...], nnz: int, indices: str, indptr: str
) -> None:
    assert index_dtypes(shape, nnz) == (np.dtype(indices), np.dtype(indptr))


@pytest.mark.parametrize("columns", [65_535, 65_536, 65_537, 70_000])
def test_the_last_column_of_a_wide_row_survives(columns: int) -> None:
    sparse = SparseArray.from_indices(
        [0, columns - 1, 2 * columns - 1], np.array([1, 2, 3], np.float32), (2, columns)
    )
    data, indices, indptr = write_csr(sparse)
    assert indices.dtype == (np.uint16 if columns <= 65_536 else np.uint32)
    assert indices.tolist() == [0, columns - 1, columns - 1]
    again = read_csr(
        data, indices, indptr, shape=sparse.shape, dtype=sparse.dtype, nnz=3, refuse=refuse
    )
    assert again.flat_indices.tolist() == [0, columns - 1, 2 * columns - 1]
    assert again.values.tolist() == [1, 2, 3]
    assert again.matrix.indices.dtype == np.int32


def test_bytes_are_those_of_the_arrays() -> None:
    rng = np.random.default_rng(1)
    for shape in ((), (9,), (4, 300), (3, 5, 2, 2)):
        dense = np.where(rng.random(shape) < 0.5, 1.5, 0.0).astype(np.float16)
        sparse = SparseArray.from_dense(dense)
        arrays = write_csr(sparse)
        assert csr_nbytes(shape, sparse.dtype, sparse.nnz) == sum(a.nbytes for a in arrays)


# A 3 x 4 matrix: row 0 holds columns 1 and 3, row 1 nothing, row 2 column 0.
DATA = np.array([1, 2, 3], np.float32)
INDICES = np.array([1, 3, 0], np.uint8)
INDPTR = np.array([0, 2, 2, 3], np.uint8)


def read(
    data: NDArray[Any] = DATA, indices: NDArray[Any] = INDICES, indptr: NDArray[Any] = INDPTR
) -> SparseArray:
    return read_csr(
        data, indices, indptr, shape=(3, 4), dtype=np.dtype("float32"), nnz=3, refuse=refuse
    )


def test_literal_matrix_is_read() -> None:
    assert read().to_dense().tolist() == [[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 0]]


@pytest.mark.parametrize("indptr", [[0, 0, 0, 3], [0, 3, 3, 3], [0, 1, 2, 3], [0, 0, 3, 3]])
def test_rows_may_be_empty_anywhere(indptr: list[int]) -> None:
    ascending = np.array([0, 2, 3], np.uint8)
    assert read(indices=ascending, indptr=np.array(indptr, np.uint8)).nnz == 3


def u8(*values: int) -> NDArray[np.uint8]:
    return np.array(values, np.uint8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": DATA[:2]}, r"field data: shape \(3,\) expected, \(2,\) came"),
        ({"data": DATA[None]}, "field data: shape"),
        ({"data": DATA.astype(np.float64)}, "field data: data type float32 expected, float64"),
        ({"data": DATA.astype(">f4")}, "field data: data type float32 expected, >f4"),
        ({"data": np.array([1, np.nan, 3], np.float32)}, "field data: 1 values .* nan at 1"),
        ({"data": np.array([1, 2, -np.inf], np.float32)}, "field data: 1 values .* -inf at 2"),
        ({"indices": INDICES[:2]}, "field indices: shape"),
        ({"indices": INDICES.astype(np.uint16)}, "field indices: data type uint8 expected"),
        ({"indices": INDICES.astype(np.int8)}, "field indices: data type uint8 expected"),
        ({"indices": u8(1, 4, 0)}, "field indices: column 4 is out of range, there are 4"),
        ({"indices": u8(3, 1, 0)}, "field indices: columns must ascend"),
        ({"indices": u8(1, 1, 0)}, "field indices: columns must ascend"),
        ({"indptr": u8(0, 2, 3)}, r"field indptr: shape \(4,\) expected, \(3,\) came"),
        ({"indptr": INDPTR.astype(np.int64)}, "field indptr: data type uint8 expected"),
        ({"indptr": u8(1, 2, 2, 3)}, "field indptr: must run from 0 to 3, runs from 1 to 3"),
        ({"indptr": u8(0, 2, 2, 4)}, "field indptr: must run from 0 to 3, runs from 0 to 4"),
        ({"indptr": u8(0, 2, 2, 2)}, "field indptr: must run from 0 to 3, runs from 0 to 2"),
        ({"indptr": u8(0, 2, 1, 3)}, "field indptr: must not descend"),
        ({"indptr": u8(0, 200, 2, 3)}, "field indptr: must not descend"),
    ],
)
def test_broken_arrays_are_refused(changed: dict[str, NDArray[Any]], message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        read(**changed)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_finite_values_whose_sum_overflows_are_accepted(dtype: str) -> None:
    largest = np.full(70_000, np.finfo(dtype).max, dtype)
    check_values(largest, "data", refuse)
    largest[69_999] = np.nan
    with pytest.raises(PayloadError, match="1 values are not finite; the first is nan at 69999"):
        check_values(largest, "data", refuse)


def test_infinities_that_cancel_are_refused() -> None:
    with pytest.raises(PayloadError, match="2 values"):
        check_values(np.array([[np.inf, 1], [0, -np.inf]]), "data", refuse)


def test_a_bool_byte_beyond_one_is_refused() -> None:
    check_values(np.array([0, 1], np.uint8).view(bool), "data", refuse)
    with pytest.raises(PayloadError, match="a bool must be 0 or 1"):
        check_values(np.array([0, 2], np.uint8).view(bool), "data", refuse)
