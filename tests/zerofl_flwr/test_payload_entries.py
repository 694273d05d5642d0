"""The parts that a payload consists of."""

from __future__ import annotations

import numpy as np
import pytest

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload_entries import Entry, NotSent, Values
from zerofl_flwr.sparse_array import SparseArray


def test_only_what_left_positions_out_is_sparse() -> None:
    dense = np.zeros((2, 3), np.float32)
    assert not Entry("w", dense).sparse
    assert Entry("w", dense, sparse=True).sparse
    assert Entry("w", SparseArray.from_dense(dense)).sparse
    assert not Entry("w", Values((2, 3), dense[0])).sparse


def test_values_and_unsent_tensors_cannot_be_sparse() -> None:
    for data in (Values((3,), np.ones(2)), NotSent((3,), np.dtype("int64"))):
        with pytest.raises(PayloadError, match="layer w, field sparse: only arrays"):
            Entry("w", data, sparse=True)


@pytest.mark.parametrize("values", [np.ones((2, 2)), np.ones(4), np.ones(())])
def test_values_must_fit_a_pattern(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> None:
    with pytest.raises(PayloadError, match="cannot lie at a pattern"):
        Values((3,), values)
