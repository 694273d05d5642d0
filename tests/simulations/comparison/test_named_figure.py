from __future__ import annotations

import numpy as np
import pytest

from simulations.comparison.named_figure import (
    add_legend,
    figure_of_rows,
    figure_with_legend,
    wrapped,
)


def test_a_long_name_takes_several_lines_and_is_no_formula() -> None:
    assert wrapped("FedAvg, dense") == "FedAvg, dense"
    assert wrapped("top-k-weights, r = .2, dense activations") == (
        "top-k-weights, r = .2, dense\nactivations"
    )
    assert wrapped("$_$") == r"\$_\$"
    assert wrapped("") == " "


@pytest.mark.parametrize("count", [1, 40])
def test_a_legend_stays_inside_the_figure_and_leaves_room_for_the_data(count: int) -> None:
    names = [f"a method whose name is as long as a sentence, {i}" for i in range(count)]
    figure = figure_with_legend(names)
    axes = figure.subplots()
    for name in names:
        axes.plot([0, 1], label=wrapped(name))
    add_legend(figure)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert np.all(np.asarray(box.min) >= 0)
    assert np.all(np.asarray(box.max) <= np.asarray(figure.bbox.max))
    assert axes.get_window_extent().width > 4.5 * figure.dpi  # inches


def test_rows_are_as_high_as_the_longest_name_needs() -> None:
    short = figure_of_rows(["a"] * 10).get_size_inches()
    long = figure_of_rows(["a"] * 9 + ["a name of three lines " * 4]).get_size_inches()
    np.testing.assert_allclose(short, [5.5 + 0.8 + 0.078, 1.2 + 3.8])
    assert long[0] > short[0]
    np.testing.assert_allclose(long[1], 1.2 + 10 * (3 * 0.175 + 0.1))
