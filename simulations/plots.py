"""Pictures of one run: accuracy, sparsity of the aggregate, overlap of masks, classes by client.

Each function takes a run folder and returns a figure, or None when the run has no data for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simulations.plot_style import (
    DISTINCT,
    TEN_FILLS,
    Color,
    add_index_bar,
    label,
    layer_legend,
    layer_styles,
    marker,
    new_figure,
    nice_step,
    ordered_colors,
    plain_text,
    short_name,
    whole_numbers,
)
from simulations.run_files import BYTES_PER_MEGABYTE, numbers, read_table
from zerofl_flwr.errors import DataError

Picture = Callable[[Path], Figure | None]


def accuracy_by_round(run: Path) -> Figure | None:
    """Draw test accuracy in percent by round, round 0 being the untrained model."""
    rounds = _evaluated(run)
    if rounds is None:
        return None
    figure = new_figure()
    axes = figure.subplots()
    accuracy = 100 * numbers(rounds, "accuracy")
    axes.plot(
        numbers(rounds, "round"), accuracy, color=DISTINCT[0], marker=marker(len(rounds)), ms=4
    )
    label(axes, "Test accuracy by round", "Round", "Test accuracy [%]")
    whole_numbers(axes)
    return figure


def accuracy_by_megabytes(run: Path) -> Figure | None:
    """Draw test accuracy in percent by megabytes (10^6 bytes) of all clients' training so far.

    What the tests themselves move is not in it.
    """
    table = read_table(run / "rounds.csv", ("accuracy", "uplink_bytes", "downlink_bytes"))
    if table is None:
        return None
    up = cumulative_megabytes(table, "uplink_bytes")
    down = cumulative_megabytes(table, "downlink_bytes")
    accuracy = 100 * numbers(table, "accuracy")
    seen = np.isfinite(accuracy)
    if not seen.any() or up[-1] + down[-1] == 0:
        return None
    figure = new_figure()
    axes = figure.subplots()
    dot = marker(int(seen.sum()))
    # The dashed line last: where next to nothing goes down, it lies on the other.
    for x, name, color, dash in (
        (up + down, "up and down", DISTINCT[0], "-"),
        (up, "up only", DISTINCT[1], "--"),
    ):
        axes.plot(
            x[seen], accuracy[seen], color=color, linestyle=dash, marker=dot, ms=4, label=name
        )
    label(
        axes,
        "Test accuracy by traffic",
        "Training traffic of all clients since the start, without tests [MB]",
        "Test accuracy [%]",
    )
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False, loc="lower right")
    return figure


def nonzero_ratio(run: Path) -> Figure | None:
    """Draw the share of non-zero weights in the aggregate, per layer by round."""
    layers = _layer_series(run, "nonzero_ratio")
    if layers is None:
        return None
    figure = new_figure(9, 4.8)
    axes = figure.subplots()
    _draw_layers(axes, layers)
    label(axes, "Non-zero weights after aggregation", "Round", "Share of non-zero weights")
    axes.set_ylim(0, 1.02)
    layer_legend(figure, [axes], list(layers))
    return figure


def mask_overlap(run: Path) -> Figure | None:
    """Draw how much of the last round's top-K mask, and of its zero positions, is there again."""
    kept = _layer_series(run, "mask_overlap")
    zeros = _layer_series(run, "zero_overlap")
    panels = [
        (series, title)
        for series, title in (
            (kept, "Kept positions that stay"),
            (zeros, "Zero positions that stay"),
        )
        if series is not None
    ]
    if not panels:
        return None
    figure = new_figure(5.2 * len(panels) + 1.8, 4.8)
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (layers, title) in zip(row, panels, strict=True):
        _draw_layers(axes, layers)
        label(axes, title, "Round", "Share of the last round's positions")
        low = min(float(np.nanmin(values)) for _, values in layers.values())
        # A flat line at 1 still needs some room below it.
        axes.set_ylim(
            max(0.0, min(low - 0.05 * (1 - low), 0.98)), 1.0 + 0.03 * (1 - min(low, 0.98))
        )
    layer_legend(figure, list(row), list(panels[0][0]))
    return figure


def partitions(run: Path) -> Figure | None:
    """Draw a stacked histogram: the number of training samples per class that each client holds."""
    table = read_table(run / "partitions.csv", ("partition_id",))
    if table is None or len(table.columns) < 2:
        return None
    table = table.sort_values("partition_id", kind="stable")
    classes = [str(column) for column in table.columns if column != "partition_id"]
    counts = np.stack([numbers(table, name) for name in classes])
    clients = counts.shape[1]
    figure = new_figure(min(max(7.5, 0.03 * clients), 14), 4.8)
    axes = figure.subplots()
    _stack(axes, counts, classes)
    totals = counts.sum(axis=0)
    label(
        axes,
        f"Classes by client: {clients} clients of {_span(totals)} samples",
        "Client (partition id)",
        "Samples",
    )
    axes.set_xlim(-0.5, clients - 0.5)
    axes.set_ylim(0, max(1.0, 1.04 * float(totals.max())))
    axes.grid(visible=False, axis="x")
    _name_clients(axes, table["partition_id"].to_numpy(dtype=np.int64))
    if len(classes) > len(TEN_FILLS):
        add_index_bar(figure, [axes], len(classes), "Class (column of partitions.csv)")
    else:
        figure.legend(loc="outside right upper", title="Class", fontsize=9, frameon=False)
    return figure


def cumulative_megabytes(rounds: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a byte column of ``rounds.csv`` summed up to each row, in megabytes (10^6 bytes)."""
    return np.cumsum(np.nan_to_num(numbers(rounds, column))) / BYTES_PER_MEGABYTE


def _evaluated(run: Path) -> pd.DataFrame | None:
    table = read_table(run / "rounds.csv", ("round", "accuracy"))
    if table is None:
        return None
    table = table[table["accuracy"].notna()]
    return None if table.empty else table


LayerSeries = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


def _layer_series(run: Path, column: str) -> LayerSeries | None:
    """Return (rounds, values) per layer in the table's order; None when `column` has no value."""
    table = read_table(run / "layers.csv", ("round", "layer", column))
    if table is None or table[column].notna().sum() == 0:
        return None
    return {
        str(layer): (numbers(rows, "round"), numbers(rows, column))
        for layer, rows in table.groupby("layer", sort=False)
    }


def _draw_layers(axes: Axes, layers: LayerSeries) -> None:
    for (layer, (rounds, values)), (color, dash) in zip(
        layers.items(), layer_styles(len(layers)), strict=True
    ):
        axes.plot(
            rounds,
            values,
            color=color,
            linestyle=dash,
            linewidth=1.4,
            marker=marker(len(rounds)),
            ms=3.5,
            label=short_name(layer),
        )
    whole_numbers(axes)


def _stack(axes: Axes, counts: NDArray[np.float64], classes: list[str]) -> None:
    """Stack (classes, clients) counts, one step patch per class: quick for hundreds of clients."""
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise DataError("partitions.csv: every class count must be a number of at least 0")
    clients = counts.shape[1]
    edges = np.arange(clients + 1) - 0.5
    tops = np.cumsum(counts, axis=0)
    many = len(classes) > len(TEN_FILLS)
    colors: list[Color] | list[str] = ordered_colors(len(classes)) if many else list(TEN_FILLS)
    for index, name in enumerate(classes):
        below = tops[index - 1] if index else np.zeros(clients)
        axes.stairs(
            tops[index],
            edges,
            baseline=below,
            fill=True,
            color=colors[index],
            label=plain_text(name),
            lw=0,
        )
    if clients <= 120:
        axes.vlines(edges, 0, float(tops[-1].max()), color="white", linewidth=60 / (clients + 20))


def _name_clients(axes: Axes, ids: NDArray[np.int64]) -> None:
    step = nice_step(ids.size, 12)
    axes.set_xticks(np.arange(0, ids.size, step), [str(i) for i in ids[::step]])


def _span(totals: NDArray[np.float64]) -> str:
    low, high = int(totals.min()), int(totals.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
