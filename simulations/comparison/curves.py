"""Accuracy by what it cost: a curve a method, the mean over its runs with a band around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simulations.comparison.costs import CLIENT_OPS, runs_of, summed_up
from simulations.comparison.named_figure import add_legend, figure_with_legend, wrapped
from simulations.comparison.tested import RECORDED, Tests, read_rounds
from simulations.plot_style import label, line_styles, marker, whole_numbers
from simulations.run_files import BYTES_PER_MEGABYTE, numbers
from zerofl_flwr.errors import DataError, SettingsError

By = Literal["round", "megabytes", "multiply-adds", "seconds"]


@dataclass(frozen=True)
class Axis:
    """An x axis: its label, and which columns of ``rounds.csv`` are summed up in which unit."""

    label: str
    columns: tuple[str, ...] = ()
    unit: float = 1.0


AXES: Mapping[By, Axis] = {
    "round": Axis("Round"),
    "megabytes": Axis(
        "Traffic of all clients, up and down, since the start [MB]",
        ("uplink_bytes", "downlink_bytes"),
        BYTES_PER_MEGABYTE,
    ),
    "multiply-adds": Axis(
        "Multiply-adds of all clients, backward too, since the start [T = 10¹²]",
        (CLIENT_OPS,),
        1e12,
    ),
    "seconds": Axis("Training time of all clients since the start [s]", ("train_seconds",)),
}


def compare_accuracy(
    runs: Mapping[str, Sequence[Path]],
    by: By,
    methods: Sequence[str] = (),
    tests: Tests = RECORDED,
) -> Figure:
    """Draw test accuracy per method: the mean over its runs, and a band from lowest to highest.

    Parameters
    ----------
    runs : Mapping[str, Sequence[Path]]
        Per method its run folders, one a seed. Only rounds that all of them evaluated are drawn.
    by : {"round", "megabytes", "multiply-adds", "seconds"}
        The x axis: the round, the megabytes (10^6 bytes) up and down, the clients' multiply-adds
        (in T, 10^12) or their training seconds; the latter three summed over clients and rounds so
        far, as a mean over the runs.
    methods : sequence of str, optional
        All methods of a report: each has the colour of its place here, also where others are not
        drawn. Default: those of `runs`.
    tests : {"recorded", "clients"}, optional
        Whose accuracy: as the rounds have it, or the mean over the clients' own tests.

    Returns
    -------
    Figure
        One line and band per method.

    Raises
    ------
    SettingsError
        If `by` is none of the four.
    DataError
        If a method has no runs, a table or column is missing, or a method's runs share no evaluated
        round.
    """
    if by not in AXES:
        raise SettingsError(f"by must be one of {', '.join(AXES)}, not {by!r}")
    figure = figure_with_legend(runs)
    axes = figure.subplots()
    places = list(methods or runs)
    styles = dict(zip(places, line_styles(len(places)), strict=True))
    for method, folders in runs.items():
        color, dash = styles[method]
        x, accuracy = _aligned(method, folders, by, tests)
        dot = marker(x.size)
        mean = accuracy.mean(axis=0)
        axes.plot(x, mean, color=color, linestyle=dash, marker=dot, ms=3.5, label=wrapped(method))
        if len(folders) > 1:
            low, high = accuracy.min(axis=0), accuracy.max(axis=0)
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    label(axes, f"Test accuracy by {by}", AXES[by].label, "Test accuracy [%]")
    if by == "round":
        whole_numbers(axes)
    else:
        axes.xaxis.set_major_formatter("{x:,g}")
    if runs:
        add_legend(figure)
    return figure


def _aligned(
    method: str, folders: Sequence[Path], by: By, tests: Tests
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x of shape (N,), a mean over runs, and accuracy in percent of shape (runs, N)."""
    curves = [_curve(folder, by, tests) for folder in runs_of(method, folders)]
    shared = _shared(curves)
    if not shared:
        raise DataError(f"method {method!r}: there is no round that all of its runs evaluated")
    points = np.array([[curve[number] for number in shared] for curve in curves])
    return points[:, :, 0].mean(axis=0), points[:, :, 1]


def has_curve(folders: Sequence[Path], tests: Tests = RECORDED) -> bool:
    """Say whether there is a round that all of a method's runs evaluated."""
    return bool(_shared([_curve(folder, "round", tests) for folder in folders]))


def _shared(curves: Sequence[Mapping[int, object]]) -> list[int]:
    """Return the rounds that all curves have, ascending."""
    return sorted(set.intersection(*(set(curve) for curve in curves)))


def _curve(folder: Path, by: By, tests: Tests) -> dict[int, tuple[float, float]]:
    """Return (x, accuracy in percent) by evaluated round."""
    axis = AXES[by]
    table = read_rounds(folder, tests, axis.columns)
    number, accuracy = numbers(table, "round"), numbers(table, "accuracy")
    x = summed_up(table, *axis.columns) / axis.unit if axis.columns else number
    return {
        int(number[i]): (float(x[i]), 100 * float(accuracy[i]))
        for i in np.flatnonzero(np.isfinite(accuracy))
    }
