"""The periodic top-K: exact passes, reused thresholds, and what is kept of a tensor."""

from __future__ import annotations

from decimal import Decimal

import pytest
import torch

from zerofl_flwr.errors import SelectionError
from zerofl_flwr.periodic_topk import Nonzeros, PeriodicTopK, Timing

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def make(sparsity: str) -> PeriodicTopK:
    selection = PeriodicTopK("layer a, weights")
    selection.sparsity = Decimal(sparsity)
    return selection


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_keeps_k_with_ties_to_the_lowest_index(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0, -2.0, 0.5], [2.0, 2.0, 0.0]], dtype=dtype)
    kept = make("0.7").dense(values, Timing.EXACT)  # ceil(0.3 * 6) = 2
    assert kept.dtype is dtype
    assert kept.tolist() == [[0, -2, 0], [2, 0, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reuse_keeps_everything_that_reaches_the_threshold(dtype: torch.dtype) -> None:
    selection = make("0.5")
    selection.dense(torch.tensor([1.0, -2.0, 0.5, 2.0], dtype=dtype), Timing.REFRESH)
    later = torch.tensor([-2.0, 1.9, 2.0, -3.0, 0.0], dtype=dtype)
    assert selection.dense(later, Timing.REUSE).tolist() == [-2, 0, 2, -3, 0]
    sparse = selection.nonzeros(later, Timing.REUSE)
    assert sparse.positions.tolist() == [0, 2, 3]
    assert sparse.to_dense().tolist() == [-2, 0, 2, -3, 0]


def test_refresh_replaces_the_threshold_and_exact_does_not() -> None:
    selection = make("0.5")
    selection.dense(torch.tensor([1.0, 4.0]), Timing.REFRESH)
    selection.dense(torch.tensor([1.0, 2.0]), Timing.EXACT)
    assert selection.dense(torch.tensor([3.0, 5.0]), Timing.REUSE).tolist() == [0, 5]
    selection.dense(torch.tensor([1.0, 3.0]), Timing.REFRESH)
    assert selection.dense(torch.tensor([3.0, 5.0]), Timing.REUSE).tolist() == [3, 5]


def test_without_a_threshold_reuse_selects_exactly() -> None:
    selection = make("0.5")
    assert selection.dense(torch.tensor([1.0, 4.0]), Timing.REUSE).tolist() == [0, 4]
    selection.restart()
    assert selection.dense(torch.tensor([9.0, 8.0]), Timing.REUSE).tolist() == [9, 0]


def test_a_threshold_of_another_dtype_is_not_reused() -> None:
    selection = make("0.5")
    selection.dense(torch.tensor([1.0, 4.0]), Timing.REFRESH)
    half = torch.tensor([1.0, 2.0], dtype=torch.float16)
    assert selection.dense(half, Timing.REUSE).tolist() == [0, 2]


@pytest.mark.parametrize("timing", [Timing.EXACT, Timing.REFRESH])
def test_zeros_within_the_top_are_not_stored(timing: Timing) -> None:
    values = torch.tensor([0.0, 3.0, 0.0, -1.0, 0.0])
    selection = make("0.2")  # 4 of 5, only two of them non-zero
    kept = selection.nonzeros(values, timing)
    assert kept.positions.tolist() == [1, 3]
    assert kept.values.tolist() == [3, -1]
    if timing is Timing.REFRESH:  # the threshold is zero now, which admits all but zeros
        later = selection.nonzeros(torch.tensor([0.0, 0.0, 1e-30]), Timing.REUSE)
        assert later.positions.tolist() == [2]


def test_sparsity_one_drops_everything_also_infinity() -> None:
    selection = make("1")
    values = torch.tensor([1.0, torch.inf])
    for timing in (Timing.REFRESH, Timing.REUSE, Timing.EXACT):
        assert selection.dense(values, timing).tolist() == [0, 0]
        assert selection.nonzeros(values, timing).positions.numel() == 0


def test_infinity_is_kept() -> None:
    selection = make("0.5")
    for timing in (Timing.REFRESH, Timing.REUSE):
        kept = selection.dense(torch.tensor([1.0, -torch.inf]), timing)
        assert kept.tolist() == [0, -torch.inf]


def test_positions_are_logical_and_narrow() -> None:
    values = torch.tensor([[1.0, 4.0], [3.0, 2.0]]).t()  # logical order 1, 3, 4, 2
    kept = make("0.5").nonzeros(values, Timing.EXACT)
    assert kept.positions.dtype is torch.int32
    assert kept.positions.tolist() == [1, 2]
    assert kept.values.tolist() == [3, 4]
    assert kept.to_dense().tolist() == [[0, 3], [4, 0]]


def test_out_is_written_and_returned() -> None:
    selection = make("0.5")
    for timing in (Timing.REFRESH, Timing.REUSE):
        out = torch.full((2,), 7.0)
        assert selection.dense(torch.tensor([1.0, 4.0]), timing, out) is out
        assert out.tolist() == [0, 4]
    half = selection.dense(torch.tensor([1.0, 4.0]).half(), Timing.REFRESH)
    assert selection.dense(torch.tensor([5.0, 1.0]).half(), Timing.REUSE, half) is half
    assert half.tolist() == [5, 0]


def test_sparsity_zero_returns_the_values_themselves() -> None:
    values = torch.tensor([1.0, 0.0])
    assert make("0").dense(values, Timing.EXACT).data_ptr() == values.data_ptr()


def test_empty_tensors() -> None:
    selection = make("0.5")
    for timing in Timing:
        assert selection.dense(torch.empty(0, 3), timing).shape == (0, 3)
        assert selection.nonzeros(torch.empty(0, 3), timing).to_dense().shape == (0, 3)


@pytest.mark.parametrize("timing", list(Timing))
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_an_error_that_names_the_tensor(timing: Timing, dtype: torch.dtype) -> None:
    selection = make("0.5")
    selection.dense(torch.tensor([1.0, 2.0], dtype=dtype), Timing.REFRESH)
    values = torch.tensor([1.0, torch.nan], dtype=dtype)
    with pytest.raises(SelectionError, match="layer a, weights: found NaN"):
        selection.dense(values, timing)
    with pytest.raises(SelectionError, match="layer a, weights: found NaN"):
        selection.nonzeros(values, timing)


def test_opposite_infinities_are_not_taken_for_nan() -> None:
    selection = make("0.5")
    values = torch.tensor([torch.inf, -torch.inf, 1.0, 1.0])
    selection.dense(values, Timing.REFRESH)
    assert selection.dense(values, Timing.REUSE).tolist() == [torch.inf, -torch.inf, 0, 0]


def test_nonzeros_of_a_scalar() -> None:
    kept = Nonzeros(torch.tensor([2.0]), torch.tensor([0], dtype=torch.int32), ())
    assert kept.to_dense().item() == 2.0
