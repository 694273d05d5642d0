"""Maps of an AdaSplit run: who uploaded when, and how the clients' masks relate.

Each function takes a run folder and returns a figure, or None when the run has no data for it, as
a run of another method.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simulations.adasplit_plots import mark_global_phase
from simulations.adasplit_tables import (
    ClientMasks,
    UploadTable,
    global_start,
    read_client_masks,
    read_uploads,
)
from simulations.plot_style import label, new_figure, nice_step

MOST_COLUMNS = 400
MOST_ROWS = 80
"""More rounds, or more clients, than these are drawn in bins."""
MOST_FRAMED = 2000
"""More turns than these are drawn without lines between them."""
MOST_TEXTS = 8
"""Up to this many clients the values are written into the picture."""

_NOT_ASKED, _TRAINED, _PICKED, _FAILED = "#E6E6E6", "#9ECAE1", "#08306B", "#D55E00"
_STATES = (
    ("not asked", _NOT_ASKED),
    ("trained only", _TRAINED),
    ("picked: uploaded", _PICKED),
    ("failed", _FAILED),
)
_BIN_COLUMNS = 130  # at most; wider than single rounds, so that shares differ by more than chance
_LEAST_SPAN = 0.1  # of a scale of densities or overlaps: less than that is no structure


def picks(run: Path) -> Figure | None:
    """Draw who uploaded activations: clients downwards, rounds to the right.

    Up to 80 clients and 400 rounds each turn is a cell: not asked, trained, picked, or failed. More
    are drawn in bins, as the share of turns in which the asked clients uploaded; a cross marks a
    bin with a failure. A failure that names no client is in neither.
    """
    table = read_uploads(run)
    if table is None:
        return None
    clients, rounds = table.asked.shape
    in_bins = clients > MOST_ROWS or rounds > MOST_COLUMNS
    per_row, per_column = (
        (nice_step(clients, MOST_ROWS), nice_step(rounds, _BIN_COLUMNS)) if in_bins else (1, 1)
    )
    rows = -(-clients // per_row)
    figure = new_figure(10, min(max(3.4, 2.2 + 0.16 * rows), 9))
    axes = figure.subplots()
    if in_bins:
        _draw_shares(figure, axes, table, per_row, per_column)
    else:
        _draw_states(figure, axes, table)
    label(
        axes,
        "Who uploaded activations",
        "Round" if per_column == 1 else f"Round, {per_column} to a column",
        "Client (partition id)" + ("" if per_row == 1 else f", {per_row} to a row"),
    )
    whole = MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    axes.xaxis.set_major_locator(whole)
    _place_ids(axes, table.clients, across=False)
    axes.invert_yaxis()
    axes.grid(visible=False)
    mark_global_phase(axes, global_start(run))
    return figure


def client_masks(run: Path) -> Figure | None:
    """Draw each client's mask density at the end, and the overlap of any two clients' masks.

    The overlap of two masks is the share, of the positions where either is positive, where both
    are. One client alone has no second panel.
    """
    masks = read_client_masks(run / "mask_summary.npz")
    if masks is None:
        return None
    several = masks.clients.size > 1
    figure = new_figure(11.5 if several else 7.5, 4.8)
    panels = figure.subplots(1, 2 if several else 1, squeeze=False)[0]
    _draw_density(panels[0], masks)
    if several:
        _draw_overlap(figure, panels[1], masks)
    return figure


def _draw_states(figure: Figure, axes: Axes, table: UploadTable) -> None:
    states = table.asked.astype(np.int64)  # index into _STATES, a later one covers an earlier one
    states[table.uploaded] = 2
    states[table.failed] = 3
    colors = ListedColormap([color for _, color in _STATES])
    clients, rounds = states.shape
    axes.pcolormesh(
        _edges(rounds, 1) + table.rounds[0],
        _edges(clients, 1),
        states,
        cmap=colors,
        norm=Normalize(-0.5, len(_STATES) - 0.5),
        edgecolors="white" if clients * rounds <= MOST_FRAMED else "none",
        linewidth=0.5,
    )
    handles = [
        Patch(facecolor=color, edgecolor="#BBBBBB", linewidth=0.5, label=text)
        for index, (text, color) in enumerate(_STATES)
        if (states == index).any()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)


def _draw_shares(
    figure: Figure, axes: Axes, table: UploadTable, per_row: int, per_column: int
) -> None:
    asked, uploaded, failed = (
        _counts(flags, per_row, per_column) for flags in (table.asked, table.uploaded, table.failed)
    )
    share = np.divide(uploaded, asked, out=np.full(asked.shape, np.nan), where=asked > 0)
    x = _edges(table.rounds.size, per_column) + table.rounds[0]
    y = _edges(table.clients.size, per_row)
    shades = mpl.colormaps["YlGnBu"].with_extremes(bad=_NOT_ASKED)
    mesh = axes.pcolormesh(x, y, share, cmap=shades, norm=Normalize(0.0, 1.0))
    figure.colorbar(mesh, ax=axes, label="Uploads per asked turn", pad=0.02)
    handles: list[Patch | Line2D] = []
    if (asked == 0).any():
        handles.append(Patch(facecolor=_NOT_ASKED, edgecolor="#BBBBBB", label="not asked"))
    if failed.any():
        row, column = np.nonzero(failed)
        handles += axes.plot(
            ((x[:-1] + x[1:]) / 2)[column],
            ((y[:-1] + y[1:]) / 2)[row],
            color=_FAILED,
            linestyle="",
            marker="x",
            ms=5,
            markeredgewidth=1.4,
            label="failed at least once",
        )
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)


def _counts(flags: NDArray[np.bool_], per_row: int, per_column: int) -> NDArray[np.float64]:
    rows, columns = flags.shape
    sums = np.add.reduceat(flags.astype(np.float64), np.arange(0, rows, per_row), axis=0)
    result: NDArray[np.float64] = np.add.reduceat(sums, np.arange(0, columns, per_column), axis=1)
    return result


def _edges(count: int, step: int) -> NDArray[np.float64]:
    """Return the edges of bins of `step` cells, the last one narrower where they do not fit."""
    return np.append(np.arange(0, count, step), count) - 0.5


def _draw_density(axes: Axes, masks: ClientMasks) -> None:
    place = np.arange(masks.clients.size)
    axes.plot(place, masks.density, linestyle="", marker="o", color=_PICKED, ms=5, clip_on=False)
    label(
        axes,
        "Density of the masks at the end",
        "Client (partition id)",
        "Share of the server part let through",
    )
    axes.set_ylim(_scale(masks.density, room=0.15))
    room = max(0.5, 0.02 * place.size)
    axes.set_xlim(-room, place.size - 1 + room)
    _place_ids(axes, masks.clients, across=True)
    if place.size <= MOST_TEXTS:
        for x, y in zip(place, masks.density, strict=True):
            axes.annotate(
                f"{y:.3f}", (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=9
            )


def _draw_overlap(figure: Figure, axes: Axes, masks: ClientMasks) -> None:
    # The diagonal is 1 whatever the masks are, and would only flatten the scale.
    others = np.where(np.eye(masks.clients.size, dtype=np.bool_), np.nan, masks.overlap)
    norm = Normalize(*_scale(others[np.isfinite(others)]))
    image = axes.imshow(others, cmap="viridis", norm=norm, interpolation="nearest")
    axes.set_facecolor(_NOT_ASKED)
    label(axes, "Overlap of two masks", "Client (partition id)", "Client (partition id)")
    axes.grid(visible=False)
    _place_ids(axes, masks.clients, across=True)
    _place_ids(axes, masks.clients, across=False)
    figure.colorbar(image, ax=axes, label="Both positive / either positive", pad=0.02)
    if masks.clients.size > MOST_TEXTS:
        return
    for (row, column), value in np.ndenumerate(others):
        if np.isfinite(value):
            light = norm(value) > 0.6
            axes.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=9,
                color="black" if light else "white",
            )


def _scale(values: NDArray[np.float64], room: float = 0.0) -> tuple[float, float]:
    """Return limits in [0, 1] around values, never so close that noise looks like structure."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    middle = (low + high) / 2
    half = max(high - low, _LEAST_SPAN) * (0.5 + room)
    low, high = middle - half, middle + half
    return max(0.0, min(low, 1 - 2 * half)), min(1.0, max(high, 2 * half))


def _place_ids(axes: Axes, clients: NDArray[np.int64], *, across: bool) -> None:
    step = nice_step(clients.size, 12)
    axis = axes.xaxis if across else axes.yaxis
    axis.set_ticks(np.arange(0, clients.size, step), [str(client) for client in clients[::step]])
