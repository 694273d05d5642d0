from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulations.mask_plots import (
    bin_columns,
    overlap_matrix,
    pairwise_overlap,
    spread,
    zero_positions,
)
from simulations.plots import Picture
from tests.simulations.run_folders import drifting_masks, write_masks


def mask(*rows: str) -> NDArray[np.bool_]:
    return np.array([[digit == "1" for digit in row] for row in rows], dtype=np.bool_)


def test_bins_are_means_of_neighbouring_positions() -> None:
    kept = mask("11001000", "01010001")
    assert bin_columns(kept, 4).tolist() == [[1, 0, 0.5, 0], [0.5, 0.5, 0, 0.5]]
    assert bin_columns(kept, 1).tolist() == [[3 / 8], [3 / 8]]


def test_bins_may_differ_in_width_by_one() -> None:
    # 5 positions in 2 bins: two, then three.
    assert bin_columns(mask("10110"), 2).tolist() == [[0.5, 2 / 3]]


def test_few_positions_are_not_binned() -> None:
    assert bin_columns(mask("101"), 3).tolist() == [[1, 0, 1]]
    assert bin_columns(mask("101"), 512).tolist() == [[1, 0, 1]]


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_bins_neither_lose_nor_invent_positions(positions: int, most: int, seed: int) -> None:
    kept = np.random.default_rng(seed).random((3, positions)) < 0.3
    shares = bin_columns(kept, most)
    assert shares.shape == (3, min(positions, most))
    edges = np.arange(most + 1) * positions // most if positions > most else range(positions + 1)
    widths = np.diff(np.asarray(edges))
    assert widths.max() - widths.min() <= 1
    np.testing.assert_allclose(shares @ widths, kept.sum(axis=1))


def test_overlap_is_the_common_share_of_the_smaller_mask() -> None:
    # Round 2 keeps half of round 1 and moves nothing; round 3 shares one of two with each.
    kept = mask("11110000", "11000000", "10001000")
    assert pairwise_overlap(kept).tolist() == [[1, 1, 0.5], [1, 1, 0.5], [0.5, 0.5, 1]]


def test_a_mask_that_keeps_nothing_has_no_overlap() -> None:
    overlap = pairwise_overlap(mask("1100", "0000"))
    assert overlap[0, 0] == 1
    assert np.isnan(overlap[[0, 1, 1], [1, 0, 1]]).all()


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_overlap_agrees_with_sets(rounds: int, positions: int, seed: int) -> None:
    kept = np.random.default_rng(seed).random((rounds, positions)) < 0.4
    sets = [set(np.flatnonzero(row).tolist()) for row in kept]
    expected = [
        [len(a & b) / min(len(a), len(b)) if a and b else np.nan for b in sets] for a in sets
    ]
    np.testing.assert_allclose(pairwise_overlap(kept), expected)


def test_layers_are_picked_from_input_to_output() -> None:
    names = [f"layer{i}" for i in range(16)]
    assert spread(names, 4) == ["layer0", "layer5", "layer10", "layer15"]
    assert spread(names[:3], 4) == names[:3]


def test_heat_map_shows_rounds_downwards_and_kept_in_white(tmp_path: Path) -> None:
    write_masks(tmp_path, [3, 5], {"conv.weight": mask("100", "110")})
    figure = zero_positions(tmp_path)
    assert figure is not None
    axes = figure.axes[0]
    [image] = axes.get_images()
    assert image.get_array().tolist() == [[1, 0, 0], [1, 1, 0]]  # type: ignore[union-attr]
    assert image.to_rgba(np.array([1.0, 0.0])).tolist() == [[1, 1, 1, 1], [0, 0, 0, 1]]
    assert axes.yaxis_inverted()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["3", "5"]
    assert axes.get_title(loc="left") == "conv"


def test_wide_layers_are_binned_to_512_columns_and_named_so(tmp_path: Path) -> None:
    write_masks(tmp_path, [1], {"conv": drifting_masks(1, 2048, 0.1, 0)})
    figure = zero_positions(tmp_path)
    assert figure is not None
    [image] = figure.axes[0].get_images()
    assert image.get_array().shape == (1, 512)  # type: ignore[union-attr]
    assert figure.axes[0].get_xlabel() == "Sampled position, 4 to a column"
    assert figure.axes[0].get_xlim() == (-0.5, 2047.5)


@pytest.mark.parametrize("draw", [zero_positions, overlap_matrix])
@pytest.mark.parametrize(("layers", "panels"), [(1, 1), (3, 3), (4, 4), (20, 4)])
def test_a_panel_for_each_of_up_to_four_layers(
    tmp_path: Path, draw: Picture, layers: int, panels: int
) -> None:
    masks = {f"layer{i}": drifting_masks(5, 40, 0.2, i) for i in range(layers)}
    write_masks(tmp_path, [1, 2, 3, 4, 5], masks)
    figure = draw(tmp_path)
    assert figure is not None
    pictures = [axes for axes in figure.axes if axes.get_images()]
    assert len(pictures) == panels


def test_overlap_matrix_names_both_axes_by_round(tmp_path: Path) -> None:
    write_masks(tmp_path, [7, 1000], {"conv": mask("1100", "0110")})
    figure = overlap_matrix(tmp_path)
    assert figure is not None
    axes = figure.axes[0]
    [image] = axes.get_images()
    assert image.get_array().tolist() == [[1, 0.5], [0.5, 1]]  # type: ignore[union-attr]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [tick.get_text() for tick in labels] == ["7", "1000"]


def test_no_masks_no_picture(tmp_path: Path) -> None:
    assert zero_positions(tmp_path) is None
    assert overlap_matrix(tmp_path) is None
