"""Pictures of where the zeros are: a heat map by round, and the overlap of any two rounds.

Each function takes a run folder and returns a figure, or None when the run has no data for it.
These are the views of the ZeroFL paper's figures 2 and 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simulations.plot_style import label, new_figure, short_name
from simulations.run_files import read_mask_history

MOST_PANELS = 4
MOST_COLUMNS = 512
SHARP_ROWS = 200


def zero_positions(run: Path) -> Figure | None:
    """Draw which sampled positions the mask keeps (white) and zeroes (dark), rounds downwards.

    One panel for each of up to four layers, spread from input to output. A layer with more than
    512 sampled positions is drawn in bins: grey tells the share of a bin that is kept.
    """
    history = read_mask_history(run / "zero_positions.npz")
    if history is None:
        return None
    layers = spread(list(history.kept), MOST_PANELS)
    figure = new_figure(9, 1.6 + 2.1 * len(layers))
    column = figure.subplots(len(layers), 1, squeeze=False)[:, 0]
    image: AxesImage | None = None
    for axes, layer in zip(column, layers, strict=True):
        kept = history.kept[layer]
        shares = bin_columns(kept, MOST_COLUMNS)
        # Square-root grey: in a bin of eight positions, one that is kept can still be seen.
        grey = PowerNorm(0.5, vmin=0.0, vmax=1.0)
        extent = (-0.5, kept.shape[1] - 0.5, kept.shape[0] - 0.5, -0.5)
        image = _image(axes, shares, cmap="gray", norm=grey, aspect="auto", extent=extent)
        per_bin = kept.shape[1] / shares.shape[1]
        bins = "" if per_bin == 1 else f", {per_bin:.3g} to a column"
        label(axes, short_name(layer), f"Sampled position{bins}", "Round")
        _round_ticks(axes, history.rounds, across=False)
    if image is not None:
        figure.colorbar(image, ax=list(column), label="Share kept (white) by the mask", pad=0.02)
    figure.suptitle("Zero positions by round", x=0.01, ha="left", fontweight="bold")
    return figure


def overlap_matrix(run: Path) -> Figure | None:
    """Draw for any two rounds the share of the kept sampled positions that they have in common.

    One panel for each of up to four layers, spread from input to output.
    """
    history = read_mask_history(run / "zero_positions.npz")
    if history is None:
        return None
    layers = spread(list(history.kept), MOST_PANELS)
    columns = len(layers) if len(layers) < MOST_PANELS else 2
    rows = -(-len(layers) // columns)
    figure = new_figure(4.2 * columns + 1.4, 4.0 * rows + 0.5)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    image: AxesImage | None = None
    for axes, layer in zip(grid, layers, strict=True):
        overlap = pairwise_overlap(history.kept[layer])
        image = _image(axes, overlap, cmap="viridis", norm=Normalize(0.0, 1.0))
        label(axes, short_name(layer), "Round", "Round")
        _round_ticks(axes, history.rounds, across=True)
        _round_ticks(axes, history.rounds, across=False)
    if image is not None:
        figure.colorbar(image, ax=list(grid), label="Share of the kept mask in common", pad=0.02)
    figure.suptitle("Kept positions that two rounds share", x=0.01, ha="left", fontweight="bold")
    return figure


def spread(names: list[str], most: int) -> list[str]:
    """Return up to `most` of `names`, first and last among them, evenly spread and in order."""
    if len(names) <= most:
        return names
    picks = np.round(np.linspace(0, len(names) - 1, most)).astype(int)
    return [names[pick] for pick in picks]


def bin_columns(kept: NDArray[np.bool_], most: int) -> NDArray[np.float64]:
    """Average neighbouring columns so that at most `most` are left.

    Parameters
    ----------
    kept : NDArray[np.bool_]
        Shape (R, P).
    most : int
        The most columns of the result, at least 1. Bins differ in width by one position at most.

    Returns
    -------
    NDArray[np.float64]
        Shape (R, min(P, most)), the share of True in each bin.
    """
    positions = kept.shape[1]
    if positions <= most:
        return kept.astype(np.float64)
    edges = np.arange(most + 1) * positions // most
    shares: NDArray[np.float64] = np.add.reduceat(
        kept.astype(np.float64), edges[:-1], axis=1
    ) / np.diff(edges)
    return shares


def pairwise_overlap(kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return how much of their masks any two rounds share.

    Dividing by the smaller of the two masks keeps the measure symmetric, and at 1 for a mask that
    shrinks without moving, as it does while sparsity rises.

    Parameters
    ----------
    kept : NDArray[np.bool_]
        Shape (R, P), the mask of each round at P positions.

    Returns
    -------
    NDArray[np.float64]
        Shape (R, R), in [0, 1]: positions kept in both rounds over the positions kept in the round
        that keeps fewer; NaN where one of the two keeps none.
    """
    # Counts are whole numbers; float32 holds those exactly up to 2^24 and multiplies quickly.
    values = kept.astype(np.float32)
    common = (values @ values.T).astype(np.float64)
    sizes = np.diagonal(common)
    smaller = np.minimum.outer(sizes, sizes)
    return np.divide(common, smaller, out=np.full_like(common, np.nan), where=smaller > 0)


def _image(axes: Axes, values: NDArray[np.float64], **look: Any) -> AxesImage:
    # Each round stays a sharp row while there is a pixel for it; beyond that rows are averaged.
    scaling = "nearest" if values.shape[0] <= SHARP_ROWS else "antialiased"
    return axes.imshow(values, interpolation=scaling, **look)


def _round_ticks(axes: Axes, rounds: NDArray[np.int64], *, across: bool) -> None:
    wanted = MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]).tick_values(
        int(rounds[0]), int(rounds[-1])
    )
    picks = np.flatnonzero(np.isin(rounds, wanted))
    # Rounds recorded at odd intervals may hit no such number: then the ends are named.
    picks = picks if picks.size > 1 else np.unique([0, rounds.size - 1])
    axis = axes.xaxis if across else axes.yaxis
    axis.set_ticks(picks, [str(rounds[pick]) for pick in picks])
    axes.grid(visible=False)
