"""Sparse arrays: a tensor's stored positions as CSR of its 2-D view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.sparse_array import SparseArray, matrix_shape

FLOATS = ("float16", "float32", "float64")


@st.composite
def arrays_of_any_bits(draw: st.DrawFn) -> NDArray[Any]:
    """Arrays over every bit pattern, many of them zero, contiguous or not."""
    dtype = np.dtype(draw(st.sampled_from((*FLOATS, "int8", "int64", "bool"))))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    unsigned = np.dtype(f"u{dtype.itemsize}")
    highest = 1 if dtype.kind == "b" else np.iinfo(unsigned).max
    bits = draw(hnp.arrays(unsigned, shape, elements=st.just(0) | st.integers(0, int(highest))))
    array = bits.view(dtype) if bits.ndim else bits.reshape(1).view(dtype).reshape(())
    layout = draw(st.sampled_from(("C", "F", "reversed")))
    if layout == "reversed":
        return np.asarray(np.flip(array))
    return np.asarray(array, order="F" if layout == "F" else "C")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (1, 1)),
        ((0,), (1, 0)),
        ((7,), (1, 7)),
        ((3, 0), (3, 0)),
        ((2, 5), (2, 5)),
        ((64, 32, 3, 3), (64, 288)),
    ],
)
def test_two_dimensional_view(shape: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert matrix_shape(shape) == expected


@given(arrays_of_any_bits())
@settings(deadline=None, max_examples=200)
def test_dense_to_sparse_and_back_keeps_every_bit(array: NDArray[Any]) -> None:
    sparse = SparseArray.from_dense(array)
    dense = sparse.to_dense()
    assert dense.shape == array.shape == sparse.shape
    assert dense.dtype == array.dtype == sparse.dtype
    assert dense.tobytes() == array.tobytes()
    assert sparse.nnz == sum(any(value.tobytes()) for value in array.reshape(-1))


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_positions_and_values_come_back_as_given(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    numel = math.prod(shape)
    positions = sorted(data.draw(st.sets(st.integers(0, max(numel - 1, 0)), max_size=numel)))
    positions = positions if numel else []
    values = np.arange(len(positions), dtype=np.float32)  # the first of them is a stored zero
    sparse = SparseArray.from_indices(positions, values, shape)
    assert sparse.flat_indices.tolist() == positions
    assert sparse.flat_indices.dtype == np.int64
    assert sparse.values.tolist() == values.tolist()
    assert sparse.nnz == len(positions)


def test_literal_convolution() -> None:
    sparse = SparseArray.from_indices([1, 4, 9], np.array([5, 0, -7], np.float16), (2, 3, 2, 1))
    assert sparse.matrix.shape == (2, 6)
    assert sparse.matrix.indptr.tolist() == [0, 2, 3]
    assert sparse.matrix.indices.tolist() == [1, 4, 3]
    assert sparse.nnz == 3  # the stored zero counts
    assert sparse.to_dense().tolist() == [
        [[[0], [5]], [[0], [0]], [[0], [0]]],
        [[[0], [0]], [[0], [-7]], [[0], [0]]],
    ]
    assert sparse.to_dense().dtype == np.float16


def test_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((11, 13)) < 0.3, rng.standard_normal((11, 13)), 0.0)
    ours, theirs = SparseArray.from_dense(dense).matrix, csr_matrix(dense)
    np.testing.assert_array_equal(ours.data, theirs.data)
    np.testing.assert_array_equal(ours.indptr, theirs.indptr)
    np.testing.assert_array_equal(ours.indices, theirs.indices)


def test_values_are_not_copied() -> None:
    values = np.ones(2, np.float32)
    assert np.shares_memory(SparseArray.from_indices([0, 1], values, (4,)).values, values)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([1, 0], "ascend strictly within 0 to 5"),
        ([1, 1], "ascend strictly"),
        ([-1, 0], "ascend strictly"),
        ([5, 6], "ascend strictly"),
        ([0.0, 1.0], "1-D integer array, got float64"),
        ([[0, 1]], r"1-D integer array, got int64 of shape \(1, 2\)"),
        ([0], "1 positions need as many values"),
    ],
)
def test_bad_positions_are_refused(positions: list[Any], message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        SparseArray.from_indices(positions, np.ones(2, np.float32), (2, 3))


def test_a_matrix_of_another_shape_is_refused() -> None:
    with pytest.raises(PayloadError, match=r"field shape: .*\(2, 6\), not \(3, 4\)"):
        SparseArray((2, 3, 2), csr_matrix((3, 4)))


@pytest.mark.parametrize("columns", [[2, 1], [1, 1]])
def test_a_matrix_out_of_order_is_refused(columns: list[int]) -> None:
    matrix = csr_matrix((np.ones(2), np.array(columns), np.array([0, 2])), shape=(1, 3))
    with pytest.raises(PayloadError, match="field indices: columns must ascend"):
        SparseArray((3,), matrix)
