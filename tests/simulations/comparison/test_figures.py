from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from simulations.comparison.figures import c3_bars, client_accuracy, front, trade_off
from tests.simulations.drawn_texts import overlapping_texts


def summary(**columns: Sequence[object]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def names_in_legend(axes: Axes) -> list[str]:
    [legend] = axes.figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_long_names_of_bars_keep_apart() -> None:
    long = "kappa 0.3, eta 0.6, iterations-per-round 63, client-weights relayed, mask-penalty 0.001"
    figure = c3_bars(summary(method=["a", long, "b", long], C3=[0.5, 0.25, 0.1, 0.9]))
    assert figure is not None
    assert overlapping_texts(figure) == []


def test_bars_are_of_methods_that_have_a_score() -> None:
    figure = c3_bars(summary(method=["a", "b", "$_$"], C3=[0.5, math.nan, 0.25]))
    assert figure is not None
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.25]  # type: ignore[attr-defined]
    assert [text.get_text() for text in axes.texts] == ["0.500", "0.250"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", r"\$_\$"]
    assert overlapping_texts(figure) == []
    assert c3_bars(summary(method=["a"], C3=[math.nan])) is None


def traffic(gigabytes: list[float], accuracy: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": [f"m{i}" for i in range(len(accuracy))],
            "GB": [2 * size for size in gigabytes],
            "accuracy": accuracy,
            "spread": [1.0, *[math.nan] * (len(accuracy) - 1)],
        }
    )


def test_the_trade_off_has_a_point_a_method_and_a_line_of_the_best() -> None:
    figure = trade_off(traffic([0.004, 0.001, 0.002, 0.003], [80, 50, 70, 60]))
    assert figure is not None
    axes = figure.axes[0]
    line = axes.get_lines()[0]
    np.testing.assert_allclose(np.asarray(line.get_xdata()), [2, 4, 8])
    np.testing.assert_allclose(np.asarray(line.get_ydata()), [50, 70, 80])
    assert names_in_legend(axes) == ["not beaten", "m0", "m1", "m2", "m3"]
    assert axes.get_xscale() == "linear"
    assert axes.get_xlabel() == "Traffic of all clients, up and down [MB]"
    assert overlapping_texts(figure) == []


@pytest.mark.parametrize("most", [0.1, 5.0])
def test_a_wide_span_of_traffic_is_logarithmic_unless_there_is_none(most: float) -> None:
    wide = trade_off(traffic([0.001, most], [50, 60]))
    assert wide is not None
    assert wide.axes[0].get_xscale() == "log"
    assert overlapping_texts(wide) == []
    none = trade_off(traffic([0.0, most], [50, 60]))
    assert none is not None
    assert none.axes[0].get_xscale() == "linear"
    assert none.axes[0].get_xlim()[0] < 0


def test_without_accuracy_there_is_no_trade_off() -> None:
    assert trade_off(traffic([0.001], [math.nan])) is None


def test_what_nothing_beats() -> None:
    cost = np.array([3.0, 1.0, 1.0, 2.0, 4.0])
    value = np.array([9.0, 5.0, 6.0, 6.0, 9.0])
    # The second costs as much as the third and is worth less; the fourth is worth no more.
    assert front(cost, value).tolist() == [2, 0]


def clients(count: int, methods: Sequence[str]) -> pd.DataFrame:
    rows = [
        {"method": name, "client": c, "seeds": 2, "accuracy": 90 - c * (i + 1) / 2, "spread": 1.0}
        for i, name in enumerate(methods)
        for c in range(count)
    ]
    return pd.DataFrame(rows)


def test_a_few_clients_have_a_place_each() -> None:
    figure = client_accuracy(clients(5, ["a", "b"]))
    assert figure is not None
    axes = figure.axes[0]
    points = [np.asarray(box.lines[0].get_xdata()) for box in axes.containers]  # type: ignore[attr-defined]
    np.testing.assert_allclose(points, [np.arange(5) - 0.3, np.arange(5) + 0.3])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2", "3", "4"]
    assert names_in_legend(axes) == ["a", "b"]
    assert overlapping_texts(figure) == []


def test_a_method_keeps_its_colour_where_others_have_no_clients() -> None:
    def colors(names: Sequence[str], methods: Sequence[str] = ()) -> list[object]:
        figure = client_accuracy(clients(3, names), methods)
        assert figure is not None
        return [box.lines[0].get_color() for box in figure.axes[0].containers]  # type: ignore[attr-defined]

    whole = colors(["a", "b", "c"])
    assert len(set(whole)) == 3
    assert colors(["b", "c"], ["a", "b", "c"]) == whole[1:]
    assert colors(["b", "c"]) == whole[:2]


def test_many_clients_are_sorted() -> None:
    figure = client_accuracy(clients(100, ["a"]))
    assert figure is not None
    [line] = figure.axes[0].get_lines()
    np.testing.assert_allclose(np.asarray(line.get_ydata()), 40.5 + np.arange(100) / 2)
    np.testing.assert_allclose(np.asarray(line.get_xdata()), np.arange(100) + 0.5)
    assert figure.axes[0].get_xlabel() == "Clients, from the least accurate to the most [%]"


def test_without_clients_there_is_no_picture() -> None:
    assert client_accuracy(clients(0, [])) is None


def test_many_methods_keep_apart() -> None:
    names = [f"a method with a longer name, number {i}" for i in range(25)]
    table = traffic(list(np.linspace(0.01, 0.02, 25)), list(np.linspace(50, 80, 25)))
    table["method"], table["C3"] = names, np.linspace(0.2, 0.9, 25)
    for figure in (c3_bars(table), trade_off(table), client_accuracy(clients(5, names))):
        assert figure is not None
        assert overlapping_texts(figure) == []
