"""Pictures of a summary: C3 bars, accuracy against traffic, accuracy client by client.

Each function returns a figure, or None when the table has no data for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from simulations.comparison.named_figure import (
    add_legend,
    figure_of_rows,
    figure_with_legend,
    wrapped,
)
from simulations.comparison.summary import C3, TRAFFIC
from simulations.plot_style import DISTINCT, Color, label, line_styles, whole_numbers
from simulations.run_files import numbers

MOST_CLIENTS = 20
"""More clients than these are drawn sorted by accuracy, as a line a method."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_BEST = "not beaten"
_WIDE_SPAN = 20  # times from the least to the most, from which an axis is logarithmic
_MEGABYTES_PER_GIGABYTE = 1000


def c3_bars(summary: pd.DataFrame) -> Figure | None:
    """Draw the C3-Score of each method that has one, in the table's order."""
    scores = summary[summary[C3].notna()]
    if scores.empty:
        return None
    values = numbers(scores, C3)
    figure = figure_of_rows(scores["method"])
    axes = figure.subplots()
    places = np.arange(len(scores))
    axes.barh(places, values, color=DISTINCT[0], height=0.66)
    for place, value in enumerate(values.tolist()):
        axes.text(value + 0.008, place, f"{value:.3f}", va="center", fontsize=9)
    axes.set_yticks(places, [wrapped(name) for name in scores["method"]])
    axes.set_ylim(len(scores) - 0.4, -0.6)
    label(axes, "C3-Score: accuracy, less what it cost", "C3-Score (higher is better)", "")
    axes.set_xlim(0, 1.1 * max(values.max(), 0.1))
    axes.grid(visible=False, axis="y")
    return figure


def trade_off(summary: pd.DataFrame) -> Figure | None:
    """Draw each method's accuracy against its traffic, and the line of those that none beats.

    No other method is at least as accurate with less traffic than one on the line. Bars are the
    standard deviation over seeds.
    """
    megabytes = _MEGABYTES_PER_GIGABYTE * numbers(summary, TRAFFIC)
    accuracy, deviation = numbers(summary, "accuracy"), numbers(summary, "spread")
    known = np.isfinite(megabytes) & np.isfinite(accuracy)
    if not known.any():
        return None
    figure = figure_with_legend([_BEST, *summary["method"]])
    axes = figure.subplots()
    best = front(megabytes[known], accuracy[known])
    axes.plot(
        megabytes[known][best],
        accuracy[known][best],
        color="#999999",
        linewidth=1,
        zorder=1,
        label=_BEST,
    )
    for place, (color, shape) in enumerate(_points(len(summary))):
        if known[place]:
            axes.errorbar(
                megabytes[place],
                accuracy[place],
                yerr=None if np.isnan(deviation[place]) else deviation[place],
                color=color,
                marker=shape,
                ms=8,
                capsize=3,
                linestyle="none",
                label=wrapped(summary["method"].iloc[place]),
            )
    label(
        axes,
        "Test accuracy by traffic of the whole run",
        "Traffic of all clients, up and down [MB]",
        "Test accuracy [%]",
    )
    _spread_axis(axes, megabytes[known])
    add_legend(figure)
    return figure


def client_accuracy(clients: pd.DataFrame, methods: Sequence[str] = ()) -> Figure | None:
    """Draw each client's accuracy, by method.

    Up to twenty clients have a place each, with the standard deviation over seeds as bars; of more,
    each method's clients are sorted from the least accurate to the most.

    Parameters
    ----------
    clients : pandas.DataFrame
        The table of clients.
    methods : sequence of str, optional
        All methods of a report: each has the colour of its place here, also where others' clients
        do not test. Default: those of the table.
    """
    if clients.empty:
        return None
    ids = np.unique(clients["client"].to_numpy(dtype=np.int64))
    groups = {str(method): rows for method, rows in clients.groupby("method", sort=False)}
    many = ids.size > MOST_CLIENTS
    figure = figure_with_legend(groups)
    axes = figure.subplots()
    places = list(methods or groups)
    points, lines = _points(len(places)), line_styles(len(places))
    for (method, rows), shift in zip(groups.items(), _shifts(len(groups)), strict=True):
        (color, shape), (_, dash) = points[places.index(method)], lines[places.index(method)]
        name, accuracy = wrapped(method), numbers(rows, "accuracy")
        if many:
            share = 100 * (np.arange(accuracy.size) + 0.5) / accuracy.size
            axes.plot(share, np.sort(accuracy), color=color, linestyle=dash, label=name)
            continue
        axes.errorbar(
            np.searchsorted(ids, numbers(rows, "client")) + shift,
            accuracy,
            yerr=np.nan_to_num(numbers(rows, "spread")),
            color=color,
            marker=shape,
            ms=6,
            capsize=2,
            linestyle="none",
            label=name,
        )
    if many:
        text = "Clients, from the least accurate to the most [%]"
    else:
        text = "Client (partition id)"
        axes.set_xticks(np.arange(ids.size), [str(client) for client in ids])
        axes.set_xlim(-0.6, ids.size - 0.4)
    label(axes, f"Test accuracy of {ids.size} clients", text, "Test accuracy [%]")
    if many:
        whole_numbers(axes)
    add_legend(figure)
    return figure


def front(cost: NDArray[np.float64], value: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the places that nothing beats, by rising cost: whoever costs less is worth less."""
    order = np.lexsort((-value, cost))
    best, kept = -np.inf, []
    for place in order:
        if value[place] > best:
            best = value[place]
            kept.append(place)
    return np.array(kept, dtype=np.intp)


def _points(count: int) -> list[tuple[Color, str]]:
    """Return a (colour, marker) pair for each of `count` methods; the first 64 all differ."""
    return [
        (color, _MARKERS[(index + index // len(DISTINCT)) % len(_MARKERS)])
        for index, (color, _) in enumerate(line_styles(count))
    ]


def _shifts(count: int) -> NDArray[np.float64]:
    return np.linspace(-0.3, 0.3, count) if count > 1 else np.zeros(1)


def _spread_axis(axes: Axes, megabytes: NDArray[np.float64]) -> None:
    if megabytes.min() > 0 and megabytes.max() >= _WIDE_SPAN * megabytes.min():
        axes.set_xscale("log")
        if megabytes.max() < 1000 * megabytes.min():
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(left=min(0.0, -0.03 * float(megabytes.max())))  # a marker at 0 stays whole
    axes.xaxis.set_major_formatter("{x:,g}")
