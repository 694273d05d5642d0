"""Non-zero ratios and mask overlaps on masks small enough to count by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.mask_report import (
    LayerReport,
    MaskHistory,
    overall_mask_overlap,
    overall_nonzero_ratio,
)
from tests.strategies.federation import f32
from zerofl_flwr.model_arrays import Array

NAMES = ["a.weight", "a.bias", "b.weight"]


def model(first: list[float], second: list[float]) -> list[Array]:
    return [f32(first).reshape(2, -1), np.zeros(3, np.float32), f32(second)]


def test_ratios_and_overlaps_by_hand() -> None:
    history = MaskHistory()
    arrays = model([9, 8, 0, 0, 0, 1, 7, 6], [1, 0, 0, 0, 0])
    first = history.report(NAMES, arrays, [0, 2], 0.5)
    assert [(r.layer, r.parameters, r.nonzero_ratio) for r in first] == [
        ("a.weight", 8, 5 / 8),
        ("b.weight", 5, 1 / 5),
    ]
    assert all(math.isnan(r.mask_overlap) and math.isnan(r.zero_overlap) for r in first)
    masks = history.masks(first)
    assert masks["a.weight"].tolist() == [True, True, False, False, False, False, True, True]
    # Three of five: half of them, rounded up; ties among the zeros to the lowest positions.
    assert masks["b.weight"].tolist() == [True, True, True, False, False]

    arrays = model([9, 0, 8, 0, 0, 0, 7, 6], [0, 0, 5, 4, 3])
    second = history.report(NAMES, arrays, [0, 2], 0.5)
    assert [(r.mask_overlap, r.zero_overlap) for r in second] == [(3 / 4, 3 / 4), (1 / 3, 0)]
    # And it is the last round that counts, not the first.
    third = history.report(NAMES, arrays, [0, 2], 0.5)
    assert [(r.mask_overlap, r.zero_overlap) for r in third] == [(1, 1), (1, 1)]


def test_overall_figures_weigh_layers_by_their_size() -> None:
    layers = [LayerReport("a", 300, 0.5, 1.0, 1.0), LayerReport("b", 100, 0.1, 0.2, 0.0)]
    assert overall_nonzero_ratio(layers) == pytest.approx(0.4)
    assert overall_mask_overlap(layers) == pytest.approx(0.8)
    assert math.isnan(overall_nonzero_ratio([]))
    assert math.isnan(overall_mask_overlap([]))


@pytest.mark.parametrize(("sparsity", "kept", "zeros"), [(0, 1.0, math.nan), (1, math.nan, 1.0)])
def test_nothing_or_everything_masked(sparsity: float, kept: float, zeros: float) -> None:
    history, arrays = MaskHistory(), [np.ones((2, 3), np.float32)]
    history.report(["w"], arrays, [0], sparsity)
    (report,) = history.report(["w"], arrays, [0], sparsity)
    np.testing.assert_equal((report.mask_overlap, report.zero_overlap), (kept, zeros))


def test_an_empty_layer_has_no_ratios() -> None:
    history = MaskHistory()
    for _ in range(2):
        (report,) = history.report(["w"], [np.zeros((0, 3), np.float32)], [0], 0.5)
        assert (report.parameters, report.nonzero_ratio) == (0, 0)
        assert math.isnan(report.mask_overlap)


def test_memory_is_one_bit_a_weight() -> None:
    history = MaskHistory()
    history.report(["w"], [np.ones(1000, np.float32)], [0], 0.5)
    assert {name: packed.nbytes for name, packed in history.packed.items()} == {"w": 125}


@given(st.integers(1, 70), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32))
def test_overlaps_are_set_arithmetic(n: int, before: float, now: float, seed: int) -> None:
    generator, history = np.random.default_rng(seed), MaskHistory()
    masks = []
    for sparsity in (round(before, 2), round(now, 2)):
        reports = history.report(["w"], [generator.normal(size=n)], [0], sparsity)
        masks.append(set(np.flatnonzero(history.masks(reports)["w"])))
    (report,) = reports
    old, new = masks
    everything = set(range(n))
    if old:
        assert report.mask_overlap == len(old & new) / len(old)
    if old != everything:
        assert report.zero_overlap == len(everything - old - new) / len(everything - old)
