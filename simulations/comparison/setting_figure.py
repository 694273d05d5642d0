"""Accuracy against a setting: how a sweep's value, or the number of samples, matters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simulations.comparison.named_figure import add_legend, figure_with_legend, wrapped
from simulations.comparison.sweep import settings_text
from simulations.plot_style import label, line_styles
from simulations.run_files import numbers
from zerofl_flwr.errors import SettingsError

_WIDE_SPAN = 20  # times from the least to the most, from which an axis is logarithmic


@dataclass(frozen=True)
class SettingFigure:
    """A picture with a setting on its x axis.

    Attributes
    ----------
    setting : str
        Kebab-case key, of numbers.
    lines : Mapping[str, Sequence[str]]
        Per line the methods that are its points; each has a value of its own.
    """

    setting: str
    lines: Mapping[str, Sequence[str]]


def sweep_figures(
    sweep: Mapping[str, Sequence[Any]], names: Sequence[str]
) -> dict[str, SettingFigure]:
    """Ask for a picture of each setting that a sweep varies and whose values are numbers.

    Parameters
    ----------
    sweep : mapping
        Per setting its values.
    names : sequence of str
        The sweep's methods: every combination, the first setting changing slowest.

    Returns
    -------
    dict of str to SettingFigure
        By setting; a line for each combination of the others.
    """
    combinations = list(itertools.product(*sweep.values()))
    figures = {}
    for place, (setting, values) in enumerate(sweep.items()):
        if len(values) < 2 or not all(_is_number(value) for value in values):
            continue
        lines: dict[str, list[str]] = {}
        for name, combination in zip(names, combinations, strict=True):
            others = {
                key: value
                for index, (key, value) in enumerate(zip(sweep, combination, strict=True))
                if index != place and len(sweep[key]) > 1
            }
            lines.setdefault(settings_text(others) or "all", []).append(name)
        figures[setting] = SettingFigure(setting, lines)
    return figures


def line_points(
    figure: SettingFigure, settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[tuple[float, str]]]:
    """Return each line's points, by rising value.

    Parameters
    ----------
    figure : SettingFigure
        What to draw.
    settings : mapping of str to mapping
        Per method its settings by kebab-case key. Methods that are not here are left out.

    Returns
    -------
    dict of str to list of (float, str)
        Per line the setting's values, each with its method.

    Raises
    ------
    SettingsError
        If a method has no number there, or two of a line share one.
    """
    lines = {
        name: sorted((_value(figure.setting, settings[m], m), m) for m in methods if m in settings)
        for name, methods in figure.lines.items()
    }
    for name, points in lines.items():
        if len({value for value, _ in points}) < len(points):
            raise SettingsError(f"line {name!r} of {figure.setting} has two points at one value")
    return lines


def accuracy_by_setting(
    figure: SettingFigure, settings: Mapping[str, Mapping[str, Any]], summary: pd.DataFrame
) -> Figure | None:
    """Draw accuracy against the setting, a line a row of points; bars are the spread over seeds.

    Parameters
    ----------
    figure : SettingFigure
        What to draw; methods without a finished run are left out.
    settings : mapping of str to mapping
        Per method its settings by kebab-case key.
    summary : pandas.DataFrame
        Their accuracies and spreads in percent.

    Returns
    -------
    matplotlib Figure or None
        None when no method has an accuracy.

    Raises
    ------
    SettingsError
        As `line_points`.
    """
    table = summary.set_index("method")
    known = set(table.index[np.isfinite(numbers(table, "accuracy"))])
    tested = {method: own for method, own in settings.items() if method in known}
    lines = {name: points for name, points in line_points(figure, tested).items() if points}
    if not lines:
        return None
    picture = figure_with_legend(lines)
    axes = picture.subplots()
    styles = line_styles(len(lines))
    for (name, points), (color, dash) in zip(lines.items(), styles, strict=True):
        rows = table.loc[[method for _, method in points]]
        axes.errorbar(
            [value for value, _ in points],
            numbers(rows, "accuracy"),
            yerr=np.nan_to_num(numbers(rows, "spread")),
            color=color,
            linestyle=dash,
            marker="o",
            capsize=3,
            label=wrapped(name),
        )
    label(axes, f"Test accuracy by {figure.setting}", figure.setting, "Test accuracy [%]")
    values = sorted({value for points in lines.values() for value, _ in points})
    if values[0] > 0 and values[-1] >= _WIDE_SPAN * values[0]:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(values, [f"{value:,g}" for value in values])
    add_legend(picture)
    return picture


def _value(setting: str, settings: Mapping[str, Any], method: str) -> float:
    value = settings.get(setting)
    if not _is_number(value):
        raise SettingsError(
            f"method {method!r}: {setting} is {value!r}; a figure by {setting} needs a number"
        )
    return float(value)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
