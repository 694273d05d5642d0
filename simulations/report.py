"""What is said about runs afterwards: the plots of one, curves and tables that compare several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simulations import adasplit_maps, adasplit_plots, mask_plots, plots
from simulations.plot_style import (
    label,
    line_styles,
    marker,
    new_figure,
    plain_text,
    whole_numbers,
)
from simulations.run_files import numbers
from simulations.summary import required_table, runs_of, summary_table, to_markdown
from zerofl_flwr.errors import DataError, SettingsError

__all__ = ["PICTURES", "compare_accuracy", "summary_table", "to_markdown", "write_plots"]

PICTURES: Mapping[str, plots.Picture] = {
    "accuracy_by_round": plots.accuracy_by_round,
    "accuracy_by_megabytes": plots.accuracy_by_megabytes,
    "nonzero_ratio": plots.nonzero_ratio,
    "mask_overlap": plots.mask_overlap,
    "zero_positions": mask_plots.zero_positions,
    "overlap_matrix": mask_plots.overlap_matrix,
    "client_accuracy": adasplit_plots.client_accuracy,
    "picks": adasplit_maps.picks,
    "ucb_terms": adasplit_plots.ucb_terms,
    "client_masks": adasplit_maps.client_masks,
    "losses": adasplit_plots.losses,
    "partitions": plots.partitions,
}
"""The pictures of a run by file name, in the order in which they are drawn."""

By = Literal["round", "megabytes", "seconds"]
X_LABELS: Mapping[By, str] = {
    "round": "Round",
    "megabytes": "Traffic of all clients, up and down, since the start [MB]",
    "seconds": "Training time of all clients since the start [s]",
}


def write_plots(run: Path) -> list[Path]:
    """Draw every picture for which the run folder has data.

    Parameters
    ----------
    run : Path
        The run folder.

    Returns
    -------
    list[Path]
        The PNG files written, all in ``run / "plots"``.

    Raises
    ------
    DataError
        If `run` is no folder, or pictures cannot be drawn, which it names: the others are there.
    """
    if not run.is_dir():
        raise DataError(f"{run}: there is no such run folder")
    written, failed = [], {}
    for name, draw in PICTURES.items():
        path = run / "plots" / f"{name}.png"
        try:
            if (figure := draw(run)) is None:
                continue
            path.parent.mkdir(exist_ok=True)
            figure.savefig(path)
        except Exception as error:  # whatever it is, it must not cost the other pictures
            failed[name] = error
        else:
            written.append(path)
    if failed:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise DataError(f"not all pictures could be drawn: {reasons}") from next(
            iter(failed.values())
        )
    return written


def compare_accuracy(runs: Mapping[str, Sequence[Path]], by: By) -> Figure:
    """Draw test accuracy per method: the mean over its runs, and a band from lowest to highest.

    Parameters
    ----------
    runs : Mapping[str, Sequence[Path]]
        Per method its run folders, one a seed. Only rounds that all of them evaluated are drawn.
    by : {"round", "megabytes", "seconds"}
        The x axis: the round, the megabytes (10^6 bytes) up and down, or the clients' training
        seconds; the latter two summed over clients and rounds so far, as a mean over the runs.

    Returns
    -------
    Figure
        One line and band per method.

    Raises
    ------
    SettingsError
        If `by` is none of the three.
    DataError
        If a method has no runs, a table is missing, or a method's runs share no evaluated round.
    """
    if by not in X_LABELS:
        raise SettingsError(f"by must be one of {', '.join(X_LABELS)}, not {by!r}")
    figure = new_figure(9, 5.2)
    axes = figure.subplots()
    for (method, folders), (color, dash) in zip(runs.items(), line_styles(len(runs)), strict=True):
        x, accuracy = _aligned(method, folders, by)
        dot = marker(x.size)
        mean = accuracy.mean(axis=0)
        axes.plot(
            x, mean, color=color, linestyle=dash, marker=dot, ms=3.5, label=plain_text(method)
        )
        if len(folders) > 1:
            low, high = accuracy.min(axis=0), accuracy.max(axis=0)
            axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    label(axes, f"Test accuracy by {by}", X_LABELS[by], "Test accuracy [%]")
    if by == "round":
        whole_numbers(axes)
    else:
        axes.xaxis.set_major_formatter("{x:,g}")
    if runs:
        figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return figure


def _aligned(
    method: str, folders: Sequence[Path], by: By
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x of shape (N,), a mean over runs, and accuracy in percent of shape (runs, N)."""
    curves = [_curve(folder, by) for folder in runs_of(method, folders)]
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not shared:
        raise DataError(f"method {method!r}: there is no round that all of its runs evaluated")
    points = np.array([[curve[number] for number in shared] for curve in curves])
    return points[:, :, 0].mean(axis=0), points[:, :, 1]


def _curve(folder: Path, by: By) -> dict[int, tuple[float, float]]:
    """Return (x, accuracy in percent) by evaluated round."""
    needed = {
        "round": (),
        "megabytes": ("uplink_bytes", "downlink_bytes"),
        "seconds": ("train_seconds",),
    }
    table = required_table(folder, "rounds.csv", ("round", "accuracy", *needed[by]))
    number, accuracy = numbers(table, "round"), numbers(table, "accuracy")
    x = number
    if by == "megabytes":
        up = plots.cumulative_megabytes(table, "uplink_bytes")
        x = up + plots.cumulative_megabytes(table, "downlink_bytes")
    elif by == "seconds":
        x = np.cumsum(np.nan_to_num(numbers(table, "train_seconds")))
    return {
        int(number[i]): (float(x[i]), 100 * float(accuracy[i]))
        for i in np.flatnonzero(np.isfinite(accuracy))
    }
