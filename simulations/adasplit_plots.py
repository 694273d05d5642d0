"""Pictures of an AdaSplit run by round: accuracy by client, UCB terms, losses.

Each function takes a run folder and returns a figure, or None when the run has no data for it, as
a run of another method.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from simulations.adasplit_tables import ByClient, by_client, global_start, read_own
from simulations.plot_style import (
    DISTINCT,
    label,
    line_styles,
    marker,
    new_figure,
    nice_step,
    whole_numbers,
)
from simulations.run_files import numbers, read_table

MOST_LINES = 8
"""More clients than these are drawn as bands."""
MOST_POINTS = 100
"""More rounds than these are put together in bins."""

_BINS = 75  # about as many points as lines that cross each other can have
_PHASE_COLOR = "#555555"


def client_accuracy(run: Path) -> Figure | None:
    """Draw each client's test accuracy in percent by round, and the mean over the clients.

    Up to eight clients have a line each; of more, the median and two bands are drawn. A client
    whose test failed does not count in that round.
    """
    table = read_table(run / "tests.csv", ("round", "partition_id", "accuracy"))
    accuracy = None if table is None else by_client(table, "accuracy")
    if accuracy is None:
        return None
    figure = new_figure(9, 4.8)
    axes = figure.subplots()
    clients, percent = accuracy.clients.size, 100 * accuracy.values
    step = _draw_clients(axes, ByClient(accuracy.rounds, accuracy.clients, percent))
    if clients > 1:
        x, mean, _ = binned_rounds(accuracy.rounds, np.nanmean(percent, axis=1, keepdims=True))
        _line(axes, x, mean[:, 0], "black", "-", "mean of clients", width=2.4)
    title = "by client" if clients <= MOST_LINES else f"of {clients} clients"
    label(axes, f"Test accuracy {title}", _round_label(step), "Test accuracy [%]")
    whole_numbers(axes)
    mark_global_phase(axes, global_start(run))
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return figure


def ucb_terms(run: Path) -> Figure | None:
    """Draw both terms of the orchestrator's score, by client and round of the global phase.

    They are what the round's picks were made by. Up to eight clients have a line each; of more,
    the median and two bands are drawn.
    """
    table = read_own(run / "clients.csv", "picked", "partition_id", "exploitation", "exploration")
    if table is None:
        return None
    terms = [
        (by_client(table, "exploitation"), "Exploitation", "Discounted server loss per pick"),
        (by_client(table, "exploration"), "Exploration", "√(2 ln T / discounted picks)"),
    ]
    if any(term is None for term, _, _ in terms):
        return None
    figure = new_figure(12.2, 4.8)
    panels = figure.subplots(1, 2)
    for axes, (term, title, text) in zip(panels, terms, strict=True):
        if term is not None:
            step = _draw_clients(axes, term, widest=3.8)
            label(axes, f"{title} before the round's picks", _round_label(step), text)
            whole_numbers(axes)
            _spread_decades(axes, term.values)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9, frameon=False)
    return figure


def losses(run: Path) -> Figure | None:
    """Draw the clients' contrastive loss and the server's cross-entropy, by round.

    A loss that is 0 in every round was not trained on, and has no panel.
    """
    table = read_own(run / "rounds.csv", "phase", "train_loss", "server_loss")
    if table is None:
        return None
    panels = [
        (values, title, text)
        for values, title, text in (
            (numbers(table, "train_loss"), "Loss of the clients", "Contrastive loss (NT-Xent)"),
            (numbers(table, "server_loss"), "Loss of the server", "Cross-entropy [nats]"),
        )
        if (np.isfinite(values) & (values != 0)).any()
    ]
    if not panels:
        return None
    figure = new_figure(max(7.5, 5.4 * len(panels)), 4.5)
    # One span of rounds for both: the server has no loss in the local phase.
    row = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    start = global_start(run)
    for axes, (values, title, text) in zip(row, panels, strict=True):
        step = _draw_loss(axes, numbers(table, "round"), values)
        label(axes, title, _round_label(step), text)
        mark_global_phase(axes, start)
    whole_numbers(row[0])
    return figure


def binned_rounds(
    rounds: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Put neighbouring rounds together while there are more than can be seen apart.

    Parameters
    ----------
    rounds : NDArray[np.int64]
        Shape (R,), ascending.
    values : NDArray[np.float64]
        Shape (R, N), NaN where there is none.

    Returns
    -------
    tuple of (float64 array (B,), float64 array (B, N), int)
        Per bin the mean of its rounds, and per column the median of its values, NaN of none; how
        many rounds go to a bin, 1 up to `MOST_POINTS` rounds.
    """
    if rounds.size <= MOST_POINTS:
        return rounds.astype(np.float64), values, 1
    step = nice_step(rounds.size, _BINS)
    bins = np.arange(rounds.size) // step
    middle = pd.Series(rounds).groupby(bins).mean().to_numpy(dtype=np.float64)
    medians = pd.DataFrame(values).groupby(bins).median().to_numpy(dtype=np.float64)
    return middle, medians, step


def mark_global_phase(axes: Axes, start: int | None) -> None:
    """Draw a thin line before round `start`, with its label above the panel; nothing for None."""
    if start is None:
        return
    axes.axvline(start - 0.5, color=_PHASE_COLOR, linewidth=0.9, zorder=1.5)
    # An axis of its own keeps the label clear of the data, and moves the title above it.
    top = axes.secondary_xaxis("top")
    top.set_xticks([start - 0.5], [f"global phase from round {start}"])
    top.tick_params(length=3, color=_PHASE_COLOR, labelcolor=_PHASE_COLOR, labelsize=8, pad=2)
    top.spines["top"].set_visible(False)


def _draw_clients(axes: Axes, data: ByClient, widest: float = 1.4) -> int:
    """Draw lines or bands; return how many rounds go to a point.

    Of few rounds, lines get thinner from `widest` on, so that equal ones are seen below each other.
    """
    x, values, step = binned_rounds(data.rounds, data.values)
    if data.clients.size > MOST_LINES:
        _draw_bands(axes, x, values)
        return step
    styles = line_styles(data.clients.size)
    widths = np.linspace(widest if marker(x.size) else 1.4, 1.4, data.clients.size)
    for client, column, (color, dash), width in zip(
        data.clients, values.T, styles, widths, strict=True
    ):
        _line(axes, x, column, color, dash, f"client {client}", width)
    return step


def _draw_bands(axes: Axes, x: NDArray[np.float64], values: NDArray[np.float64]) -> None:
    lowest, low, middle, high, highest = np.nanpercentile(values, (0, 10, 50, 90, 100), axis=1)
    # One round alone has no width of its own.
    wide, repeats = (x, 1) if x.size > 1 else (np.array([x[0] - 0.3, x[0] + 0.3]), 2)
    # Opaque, so that the legend shows the same colours, and below the grid.
    for bottom, top, shade, text in (
        (lowest, highest, "#D3E6F2", "lowest to highest"),
        (low, high, "#93C1E0", "10th to 90th percentile"),
    ):
        edges = np.repeat(bottom, repeats), np.repeat(top, repeats)
        axes.fill_between(wide, *edges, color=shade, linewidth=0, zorder=0.4, label=text)
    _line(axes, x, middle, DISTINCT[0], "--", "median client", width=1.8)


def _line(
    axes: Axes,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    color: object,
    dash: str,
    text: str,
    width: float = 1.4,
) -> None:
    seen = np.isfinite(y)  # a client that was not asked for some rounds still has one line
    axes.plot(
        x[seen],
        y[seen],
        color=color,
        linestyle=dash,
        linewidth=width,
        marker=marker(x.size),
        ms=2 + width,
        label=text,
    )


def _draw_loss(axes: Axes, rounds: NDArray[np.float64], values: NDArray[np.float64]) -> int:
    """Draw one line, above a pale one of every round where it is binned; return the bin's size."""
    seen = np.isfinite(values)
    x, y, step = binned_rounds(rounds[seen].astype(np.int64), values[seen, None])
    if step > 1:
        axes.plot(rounds[seen], values[seen], color=DISTINCT[0], alpha=0.3, linewidth=0.6)
    axes.plot(x, y[:, 0], color=DISTINCT[0], linewidth=1.6, marker=marker(x.size), ms=4)
    return step


def _spread_decades(axes: Axes, values: NDArray[np.float64]) -> None:
    positive = values[values > 0]
    decades = np.log10(positive.max() / positive.min()) if positive.size else 0.0
    if decades < 1:
        return
    # A value of 0 leaves the panel downwards.
    axes.set_yscale("log", nonpositive="clip")
    if decades <= 3:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())


def _round_label(step: int) -> str:
    return "Round" if step == 1 else f"Round (median of {step} to a point)"
