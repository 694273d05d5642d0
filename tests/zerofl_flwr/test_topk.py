"""Top-K selection against a slow sort, and its counting against exact fractions."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from zerofl_flwr import topk
from zerofl_flwr.errors import SelectionError, SettingsError
from zerofl_flwr.topk import (
    as_numpy,
    count_kept,
    count_unmasked,
    exact_fraction,
    topk_indices,
    topk_mask,
)

FLOATS = [np.float16, np.float32, np.float64]


def slow_topk(values: NDArray[Any], k: int) -> list[int]:
    """Sort by magnitude downwards, then by index upwards; the second opinion of these tests."""
    flat = [abs(float(value)) for value in values.flatten(order="C")]
    ranked = sorted(range(len(flat)), key=lambda index: (-flat[index], index))
    return sorted(ranked[:k])


@st.composite
def arrays_with_k(draw: st.DrawFn) -> tuple[NDArray[Any], int]:
    """Draw arrays of few distinct values, so that ties are the rule, in any layout."""
    dtype = draw(st.sampled_from(FLOATS))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    elements = draw(
        st.sampled_from(
            [
                st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 2.5, math.inf, -math.inf]),
                st.just(0.0),
                st.floats(-4, 4, width=16),
            ]
        )
    )
    values = draw(npst.arrays(dtype, shape, elements=elements))
    layout = draw(st.sampled_from(["plain", "transposed", "strided"]))
    if layout == "transposed":
        values = values.T
    elif layout == "strided" and values.ndim:
        values = values[..., ::-1]
    return values, draw(st.integers(0, values.size))


@settings(deadline=None, max_examples=200)
@given(arrays_with_k())
def test_indices_agree_with_a_sort(case: tuple[NDArray[Any], int]) -> None:
    values, k = case
    indices = topk_indices(values, k)
    assert indices.dtype == np.int64
    assert indices.tolist() == slow_topk(values, k)


@settings(deadline=None, max_examples=100)
@given(arrays_with_k())
def test_mask_and_threshold_agree_with_a_sort(case: tuple[NDArray[Any], int]) -> None:
    values, k = case
    expected = slow_topk(values, k)
    tensor = torch.from_numpy(values.copy(order="K"))
    for mask in (topk_mask(tensor, k), topk._device_mask(tensor, k)):
        assert mask.dtype is torch.bool
        assert mask.shape == tensor.shape
        assert mask.flatten().nonzero().flatten().tolist() == expected
    magnitudes = sorted((abs(float(value)) for value in values.flatten()), reverse=True)
    threshold = magnitudes[k - 1] if k else math.inf
    assert topk._device_threshold(tensor, k) == threshold


@pytest.mark.parametrize(
    "kind", ["normal", "tied", "sorted", "periodic", "mostly zero", "one value"]
)
@pytest.mark.parametrize("keep", ["0.001", "0.05", "0.3", "0.7"])
def test_large_arrays_agree_with_a_sort(kind: str, keep: str) -> None:
    """Above 65,536 entries a sample narrows the search; it must not change the answer."""
    rng = np.random.default_rng(7)
    size = 70_001
    values = rng.normal(size=size).astype(np.float32)
    if kind == "tied":
        values = np.round(values, 1)
    elif kind == "sorted":
        values.sort()
    elif kind == "periodic":  # in step with the sample, so that its bound is far off
        values[:: (size // 32768) | 1] *= 1000
    elif kind == "mostly zero":
        values[rng.random(size) < 0.97] = 0
    elif kind == "one value":
        values[:] = -3
    k = count_kept(size, keep)
    expected = np.sort(np.argsort(-np.abs(values), kind="stable")[:k])
    np.testing.assert_array_equal(topk_indices(values, k), expected)


@pytest.mark.parametrize("nonzeros", [0, 1, 2_000, 3_999, 4_000, 4_001, 8_000, 40_000])
def test_large_arrays_of_zeros_agree_with_a_sort(nonzeros: int) -> None:
    # An aggregate of sparse replies: as many non-zeros as are kept, or about as many.
    generator = np.random.default_rng(nonzeros)
    values = np.zeros(80_000, np.float32)
    values[generator.choice(values.size, nonzeros, replace=False)] = generator.normal(size=nonzeros)
    assert topk_indices(values, 4_000).tolist() == slow_topk(values, 4_000)


def test_ties_go_to_the_lowest_index() -> None:
    values = np.array([1.0, -3.0, 3.0, 0.5, -3.0, 3.0], np.float32)
    assert topk_indices(values, 3).tolist() == [1, 2, 4]
    assert topk_mask(torch.from_numpy(values), 2).tolist() == [
        False, True, True, False, False, False
    ]  # fmt: skip
    assert topk_indices(np.zeros(5), 2).tolist() == [0, 1]


def test_order_is_the_logical_one_of_a_non_contiguous_tensor() -> None:
    base = torch.tensor([[1.0, 5.0], [5.0, 5.0], [2.0, 0.0]])
    mask = topk_mask(base.t(), 2)  # logical order 1, 5, 2, 5, 5, 0
    assert mask.tolist() == [[False, True, False], [True, False, False]]
    channels_last = torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last)
    assert topk_mask(channels_last, 4).flatten().tolist() == [True] * 4 + [False] * 4


def test_values_are_left_unchanged() -> None:
    values = np.array([3.0, -1.0, 2.0], np.float32)
    topk_indices(values, 2)
    topk_mask(torch.from_numpy(values), 2)
    assert values.tolist() == [3.0, -1.0, 2.0]


def test_bfloat16_tensors_and_tensors_with_gradients() -> None:
    tensor = torch.tensor([0.5, -2.0, 1.0], dtype=torch.bfloat16, requires_grad=True)
    assert topk_mask(tensor, 1).tolist() == [False, True, False]
    assert as_numpy(tensor).dtype == np.float32


def test_views_of_cpu_tensors_are_not_copies() -> None:
    tensor = torch.zeros(3)
    as_numpy(tensor)[1] = 4
    assert tensor.tolist() == [0, 4, 0]


def test_float32_ranks_finer_than_float16() -> None:
    fine = np.array([1.0, 1.0 + 2**-20], np.float32)
    assert topk_indices(fine, 1).tolist() == [1]
    assert topk_indices(fine.astype(np.float16), 1).tolist() == [0]  # rounded to a tie


def test_empty_and_scalar() -> None:
    assert topk_indices(np.empty((0, 3)), 0).tolist() == []
    assert topk_indices(np.array(2.0, np.float32), 1).tolist() == [0]
    assert topk_mask(torch.empty(0, 3), 0).shape == (0, 3)
    assert topk_mask(torch.tensor(2.0), 1).item() is True


def test_infinity_ranks_first() -> None:
    assert topk_indices(np.array([1e30, -np.inf, 2.0]), 1).tolist() == [1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [5, 70_000])
def test_nan_is_an_error(dtype: type, size: int) -> None:
    values: NDArray[Any] = np.ones(size, dtype)
    values[3] = np.nan
    tensor = torch.from_numpy(values)
    for select in (
        lambda: topk_indices(values, 2),
        lambda: topk_indices(values, size),
        lambda: topk_mask(tensor, 2),
        lambda: topk._device_mask(tensor, 2),
    ):
        with pytest.raises(SelectionError, match="NaN"):
            select()
    assert topk_indices(values, 0).size == 0


@pytest.mark.parametrize("k", [-1, 4])
def test_count_out_of_range_is_an_error(k: int) -> None:
    values = np.ones(3)
    with pytest.raises(SelectionError, match=f"cannot keep {k} of 3"):
        topk_indices(values, k)
    with pytest.raises(SelectionError, match=f"cannot keep {k} of 3"):
        topk._device_threshold(torch.ones(3), k)


def test_integers_are_an_error() -> None:
    with pytest.raises(SelectionError, match="floating-point values, got dtype int32"):
        topk_indices(np.ones(3, np.int32), 1)
    with pytest.raises(SelectionError, match="floating-point values"):
        topk._device_threshold(torch.ones(3, dtype=torch.int64), 1)


@pytest.mark.parametrize(
    ("numel", "sparsity", "left"),
    [
        (100, 0.95, 5),  # 1 - 0.95 is 0.05000000000000004 in floats, whose ceiling is 6
        (100, "0.95", 5),
        (1000, Decimal("0.9"), 100),
        (10, 0.7, 3),
        (3, 0.5, 2),
        (7, 0, 7),
        (7, 1, 0),
        (0, 0.5, 0),
        (2_359_296, 0.95, 117_965),
        (6_422_528, 0.3, 4_495_770),
        (1, "0.9999999999999999999999999999999999999", 1),  # more digits than Decimal computes with
    ],
)
def test_count_unmasked(numel: int, sparsity: Decimal | float | str, left: int) -> None:
    assert count_unmasked(numel, sparsity) == left


@pytest.mark.parametrize(
    ("numel", "keep", "kept"),
    [(100, 0.05, 5), (100, 0.07, 7), (100, "0.071", 8), (9, 1.0, 9), (9, 0.0, 0), (10, 5e-324, 1)],
)
def test_count_kept(numel: int, keep: float | str, kept: int) -> None:
    assert count_kept(numel, keep) == kept


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 10**9),
    st.decimals(0, 1, allow_nan=False, allow_infinity=False) | st.floats(0, 1),
)
def test_counts_are_exact(numel: int, fraction: Decimal | float) -> None:
    exact = Fraction(Decimal(str(fraction)))
    assert count_kept(numel, fraction) == math.ceil(exact * numel)
    assert count_unmasked(numel, fraction) == math.ceil((1 - exact) * numel)


def test_fractions_are_read_as_their_shortest_text() -> None:
    assert exact_fraction(0.1, "keep") == Decimal("0.1")
    assert exact_fraction(np.float32(0.95), "keep") == Decimal("0.95")  # type: ignore[arg-type]
    assert exact_fraction("0.950", "keep") == Decimal("0.95")
    assert exact_fraction(1, "keep") == 1


@pytest.mark.parametrize(
    "value", [-0.1, 1.5, math.nan, math.inf, "much", "", None, True, [0.5], "1e-1000000"]
)
def test_bad_fractions_are_errors_that_name_the_setting(value: Any) -> None:
    with pytest.raises(SettingsError, match="mask_ratio"):
        exact_fraction(value, "mask_ratio")


@pytest.mark.parametrize("value", ["0.5", Decimal("0.5"), True, None])
def test_only_numbers_are_fractions_where_no_text_may_stand(value: Any) -> None:
    with pytest.raises(SettingsError, match="final must be a number from 0 to 1, got"):
        exact_fraction(value, "final", numbers_only=True)
    assert exact_fraction(0.5, "final", numbers_only=True) == Decimal("0.5")
    assert exact_fraction(1, "final", numbers_only=True) == 1


def test_bad_fractions_are_errors_of_the_counts_too() -> None:
    with pytest.raises(SettingsError, match=r"keep must lie between 0 and 1, got 1\.5"):
        count_kept(10, 1.5)
    with pytest.raises(SettingsError, match="sparsity must lie between 0 and 1, got -1"):
        count_unmasked(10, -1)
