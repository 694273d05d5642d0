from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection

from simulations.comparison.curves import By, compare_accuracy, has_curve
from tests.simulations.finished_runs import add_compute, add_tests
from tests.simulations.run_folders import seed_run
from zerofl_flwr.errors import DataError, SettingsError


def test_curves_are_means_with_a_band_from_lowest_to_highest(two_seeds: list[Path]) -> None:
    figure = compare_accuracy({"two": two_seeds, "one": two_seeds[:1]}, by="round")
    axes = figure.axes[0]
    two, one = axes.get_lines()
    # Rounds 3 and 4 were not evaluated by both seeds.
    np.testing.assert_array_equal(np.asarray(two.get_xdata()), [0, 1, 2, 5])
    np.testing.assert_allclose(np.asarray(two.get_ydata()), [90, 15, 30, 55])
    np.testing.assert_array_equal(np.asarray(one.get_xdata()), [0, 1, 2, 3, 5])
    [band] = axes.collections
    assert isinstance(band, FillBetweenPolyCollection)
    vertices = {(round(x, 6), round(y, 6)) for x, y in np.asarray(band.get_paths()[0].vertices)}
    assert {(1, 10), (1, 20), (2, 20), (2, 40), (5, 50), (5, 60)} <= vertices


@pytest.mark.parametrize(
    ("by", "x", "unit"),
    [
        ("megabytes", [0, 4, 8, 20], "[MB]"),
        ("multiply-adds", [0, 3, 6, 15], "[T = 10¹²]"),
        ("seconds", [0, 2, 4, 10], "[s]"),
    ],
)
def test_cost_adds_up_over_rounds(two_seeds: list[Path], by: By, x: list[float], unit: str) -> None:
    add_compute(two_seeds[0], client=2e12, server=9e12)
    add_compute(two_seeds[1], client=4e12, server=9e12)
    figure = compare_accuracy({"m": two_seeds}, by=by)
    [line] = figure.axes[0].get_lines()
    np.testing.assert_allclose(np.asarray(line.get_xdata()), x)
    assert figure.axes[0].get_xlabel().endswith(unit)


def test_curves_may_be_of_the_clients_tests(two_seeds: list[Path]) -> None:
    add_tests(two_seeds[0], [[0.2, 0.4], [None, None], [0.9, 0.9], [0.9, 0.9], [0.8, 0.4]])
    add_tests(two_seeds[1], [[0.5, 0.3], [0.7, 0.7], [0.9, 0.9], [0.9, 0.9], [0.6, 0.6]])
    figure = compare_accuracy({"m": two_seeds}, "megabytes", tests="clients")
    [line] = figure.axes[0].get_lines()
    np.testing.assert_allclose(np.asarray(line.get_xdata()), [4, 20])  # rounds 1 and 5
    np.testing.assert_allclose(np.asarray(line.get_ydata()), [35, 60])
    assert has_curve(two_seeds, "clients")
    add_tests(two_seeds[1], [[None], [0.7]])
    assert has_curve(two_seeds)
    assert not has_curve(two_seeds, "clients")


def test_a_method_keeps_its_colour_where_others_are_not_drawn(two_seeds: list[Path]) -> None:
    def styles(names: str, methods: str = "") -> list[tuple[object, object]]:
        figure = compare_accuracy(dict.fromkeys(names, two_seeds), "round", methods)
        return [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()]

    whole = styles("abc")
    assert len(set(whole)) == 3
    assert styles("bc", "abc") == whole[1:]
    assert styles("bc") == whole[:2]


def test_what_cannot_be_compared_is_refused(two_seeds: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="one of round, megabytes, multiply-adds, seconds, not"):
        compare_accuracy({"m": two_seeds}, by="bytes")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"columns \['client_ops'\] are missing"):
        compare_accuracy({"m": two_seeds}, by="multiply-adds")
    with pytest.raises(DataError, match="method 'm' has no runs"):
        compare_accuracy({"m": []}, by="round")
    apart = [
        seed_run(tmp_path / "odd", [None, 0.1, None]),
        seed_run(tmp_path / "even", [None, None, 0.1]),
    ]
    with pytest.raises(DataError, match="no round that all of its runs evaluated"):
        compare_accuracy({"m": apart}, by="round")


def test_a_name_that_looks_like_a_formula_can_be_drawn(two_seeds: list[Path]) -> None:
    figure = compare_accuracy({"$_$": two_seeds}, "round")
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [r"\$_\$"]
