"""Accuracy against a setting, drawn from hand-made summaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from simulations.comparison.setting_figure import (
    SettingFigure,
    accuracy_by_setting,
    line_points,
    sweep_figures,
)
from zerofl_flwr.errors import SettingsError

SUMMARY = pd.DataFrame(
    {
        "method": ["A, 200", "A, 50", "B, 50", "B, 200"],
        "accuracy": [80.0, 60.0, 70.0, float("nan")],
        "spread": [1.0, 2.0, float("nan"), float("nan")],
    }
)
SETTINGS = {
    "A, 50": {"samples-per-client": 50},
    "A, 200": {"samples-per-client": 200},
    "B, 50": {"samples-per-client": 50},
    "B, 200": {"samples-per-client": 200},
}
FIGURE = SettingFigure(
    "samples-per-client", {"A": ["A, 200", "A, 50"], "B": ["B, 50", "B, 200"], "C": ["C, 50"]}
)


def drawn_points(figure: SettingFigure) -> dict[str, list[list[float]]]:
    picture = accuracy_by_setting(figure, SETTINGS, SUMMARY)
    assert picture is not None
    return {
        str(bars.get_label()): np.asarray(bars.lines[0].get_xydata()).tolist()
        for bars in bars_of(picture)
    }


def bars_of(picture: Figure) -> list[ErrorbarContainer]:
    return [one for one in picture.axes[0].containers if isinstance(one, ErrorbarContainer)]


def test_the_points_of_a_line_come_by_rising_value_and_unknown_methods_are_left_out() -> None:
    assert line_points(FIGURE, SETTINGS) == {
        "A": [(50, "A, 50"), (200, "A, 200")],
        "B": [(50, "B, 50"), (200, "B, 200")],
        "C": [],
    }


def test_points_lie_by_value_and_unknown_ones_are_left_out() -> None:
    assert drawn_points(FIGURE) == {"A": [[50, 60], [200, 80]], "B": [[50, 70]]}


def test_bars_are_the_spread_over_seeds() -> None:
    picture = accuracy_by_setting(FIGURE, SETTINGS, SUMMARY)
    assert picture is not None
    ends = [ends[:, 1].tolist() for ends in bars_of(picture)[0].lines[2][0].get_segments()]
    assert ends == [[58, 62], [79, 81]]


def test_nothing_known_draws_nothing() -> None:
    figure = SettingFigure("samples-per-client", {"B": ["B, 200"], "C": ["C, 50"]})
    assert accuracy_by_setting(figure, SETTINGS, SUMMARY) is None


def test_a_setting_that_is_no_number_is_refused_by_method() -> None:
    figure = SettingFigure("mask", {"A": ["A, 50"]})
    with pytest.raises(SettingsError, match=r"'A, 50': mask is None; .* needs a number"):
        accuracy_by_setting(figure, SETTINGS, SUMMARY)


def test_two_points_at_one_value_are_refused() -> None:
    figure = SettingFigure("samples-per-client", {"both": ["A, 50", "B, 50"]})
    with pytest.raises(SettingsError, match="line 'both' of samples-per-client has two points"):
        accuracy_by_setting(figure, SETTINGS, SUMMARY)


def test_far_values_take_a_logarithmic_axis() -> None:
    settings = SETTINGS | {"A, 200": {"samples-per-client": 1000}}
    wide = accuracy_by_setting(FIGURE, settings, SUMMARY)
    near = accuracy_by_setting(FIGURE, SETTINGS, SUMMARY)
    assert wide is not None
    assert near is not None
    assert (wide.axes[0].get_xscale(), near.axes[0].get_xscale()) == ("log", "linear")
    assert [text.get_text() for text in wide.axes[0].get_xticklabels()] == ["50", "1,000"]


def test_a_sweep_asks_for_a_picture_of_each_varied_number() -> None:
    sweep: dict[str, list[Any]] = {"kappa": [0.3, 0.6], "mask": ["soft", "none"], "eta": [0.5]}
    names = ["30 soft", "30 none", "60 soft", "60 none"]
    assert sweep_figures(sweep, names) == {
        "kappa": SettingFigure(
            "kappa", {"mask soft": ["30 soft", "60 soft"], "mask none": ["30 none", "60 none"]}
        )
    }


def test_a_sweep_of_one_setting_is_one_line() -> None:
    figures = sweep_figures({"eta": [1, 0.5]}, ["eta 1", "eta 0.5"])
    assert figures == {"eta": SettingFigure("eta", {"all": ["eta 1", "eta 0.5"]})}
