"""The figures that a grid asks for, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.comparison.figure_entries import file_stem, read_figures
from simulations.comparison.setting_figure import SettingFigure
from zerofl_flwr.errors import SettingsError

METHODS: dict[str, dict[str, Any]] = {
    "A, 50": {"samples-per-client": 50, "kappa": 0.6, "mask": "soft"},
    "A, 200": {"samples-per-client": 200, "kappa": 0.6, "mask": "soft"},
    "alone": {"samples-per-client": 50},
}
GRID = Path("grid.toml")
LINES = {"A": ["A, 200", "A, 50"], "alone": ["alone"]}
BY = {"name": "x", "by": "samples-per-client", "lines": LINES}


def test_figures_are_of_curves_or_of_a_setting() -> None:
    curves = {"name": "all", "methods": ["A, 50", "alone"]}
    assert read_figures([curves, BY], GRID, METHODS) == (
        {"all": ["A, 50", "alone"]},
        {"x-by-samples-per-client": SettingFigure("samples-per-client", LINES)},
    )
    assert read_figures([], GRID, METHODS) == ({}, {})
    assert file_stem("accuracy", "kappa") == "accuracy-by-kappa"


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (["all"], "'figure' must be [[figure]] entries, got 'all'"),
        ([{"methods": []}], "the key 'name' is missing"),
        ([{"name": "all"}], "the key 'methods' is missing"),
        ([{"name": "all", "methods": "x"}], "methods is 'x'; expected a list"),
        ([{"name": "all", "methods": [], "axis": "round"}], "unknown key 'axis'"),
        (
            [{"name": "all", "methods": ["A, 50", "A 50"]}],
            "figure 'all': unknown method 'A 50'; did you mean 'A, 50'?",
        ),
        ([{"name": "all", "methods": [["r"]]}], "figure 'all': unknown method \"['r']\""),
        ([{"name": "all", "methods": ["alone"]}] * 2, "two figures are called 'all'"),
        ([{"name": "x", "methods": ["alone"]}, BY], "two figures are called 'x'"),
        ([{"name": "all", "methods": []}], "figure 'all': methods is empty; give at least one"),
        ([{"name": "../all", "methods": []}], "'../all', which names no file"),
        ([{"name": "", "methods": []}], "'', which names no file"),
        ([{"name": "x", "by": "kappa"}], "the key 'lines' is missing"),
        ([{"name": "x", "lines": LINES}], "the key 'by' is missing"),
        ([BY | {"methods": ["alone"]}], "a figure has methods, or by and lines; not both"),
        ([BY | {"by": 3}], "by is 3; expected a str"),
        ([BY | {"lines": ["alone"]}], "lines is ['alone']; expected a dict"),
        (
            [BY | {"by": "samples-per-clients"}],
            "figure 'x': unknown setting 'samples-per-clients'; did you mean 'samples-per-client'?",
        ),
        ([BY | {"lines": {}}], "figure 'x': lines is empty; give at least one"),
        ([BY | {"lines": {"A": []}}], "figure 'x': line 'A' is empty; give at least one"),
        ([BY | {"lines": {"A": "alone"}}], "line 'A' is 'alone'; expected a list of methods"),
        (
            [BY | {"lines": {"A": ["A, 500"]}}],
            "figure 'x': unknown method 'A, 500'; did you mean 'A, 50'?",
        ),
        ([BY | {"by": "kappa"}], "figure 'x': method 'alone': kappa is None; a figure by kappa"),
        ([BY | {"by": "mask"}], "figure 'x': method 'A, 200': mask is 'soft'; a figure by mask"),
        (
            [BY | {"lines": {"A": ["A, 50", "alone"]}}],
            "figure 'x': line 'A' of samples-per-client has two points at one value",
        ),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused(figures: list[Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_figures(figures, GRID, METHODS)
    assert message in str(caught.value)
    assert str(caught.value).startswith("grid.toml")
