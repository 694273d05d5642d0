"""One row a method: accuracy at the end, its spread over seeds, what it cost, and its C3-Score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simulations.c3 import Budgets, c3_scores
from simulations.comparison.accuracy import best_accuracy, client_table, mean_accuracy, spread
from simulations.comparison.costs import client_costs, required_table, run_totals, runs_of
from simulations.run_files import BYTES_PER_GIGABYTE, BYTES_PER_MEGABYTE, numbers
from zerofl_flwr.errors import DataError, SettingsError

OPS_PER_UNIT = 1e12
"""Multiply-adds are given in T, 10^12 of them."""

UPLINK, DOWNLINK, COUNTED = "uplink GB", "downlink GB", "counted GB"
COMPUTE, FORWARD = "client T multiply-adds", "client T multiply-adds forward"
C3, COUNTED_C3 = "C3", "C3 as counted"
SUMMARY_COLUMNS = (
    *("method", "seeds", "rounds", "accuracy", "spread", "previous", "best", "lowest client", C3),
    *("uplink MB per client and round", "downlink MB per client and round"),
    *("client seconds per round", UPLINK, DOWNLINK, COMPUTE, "total T multiply-adds"),
    *(COUNTED, FORWARD, "total T multiply-adds forward", COUNTED_C3),
)


def used(table: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Return what C3 counts of each method of a summary: GB both ways, and T multiply-adds."""
    gigabytes = numbers(table, UPLINK) + numbers(table, DOWNLINK)
    return list(gigabytes), list(numbers(table, COMPUTE))


def summary_table(
    runs: Mapping[str, Sequence[Path]], last: int = 1, budgets: Budgets | None = None
) -> pd.DataFrame:
    """Summarise methods in one row each.

    Parameters
    ----------
    runs : Mapping[str, Sequence[Path]]
        Per method its run folders, one a seed, all of the same number of rounds.
    last : int, optional
        How many rounds at the end `accuracy` looks at.
    budgets : Budgets, optional
        Of the C3-Score, in GB and T multiply-adds; default: the largest among the methods.

    Returns
    -------
    pandas.DataFrame
        The columns of `SUMMARY_COLUMNS`; NaN for what is not known. Accuracies are in percent:
        `accuracy` is the mean over the evaluated rounds among the last `last`, then over seeds;
        `spread` its sample standard deviation over seeds, NaN for one seed; `previous` is as
        `accuracy`, over the `last` rounds before those; `best` is the best evaluated round's, a
        mean over seeds; `lowest client` the accuracy of the client that has the lowest, where
        clients test for themselves. Megabytes (10^6 bytes, of serialized messages) and training
        seconds are means over good replies; the downlink counts every client that was asked.
        Gigabytes (10^9 bytes) and multiply-adds (in T, 10^12, backward pass included) are those of
        all clients, or in `total` of the server too, in a whole run without its tests, a mean over
        seeds. `counted GB` and `forward` are as AdaSplit's authors count. `C3` is computed from the
        row's `accuracy`, its gigabytes up and down and its clients' multiply-adds; `C3 as counted`
        from `counted GB` and the forward multiply-adds.

    Raises
    ------
    SettingsError
        If `last` is below 1, or a budget cannot be.
    DataError
        If a method has no runs, a table is missing, or its runs differ in their number of rounds.
    """
    if last < 1:
        raise SettingsError(f"last must be at least 1 round, not {last}")
    rows = [_summary_row(method, folders, last) for method, folders in runs.items()]
    table = pd.DataFrame(rows, columns=[c for c in SUMMARY_COLUMNS if c not in (C3, COUNTED_C3)])
    clients = client_table(runs, last)
    lowest = clients.groupby("method")["accuracy"].min()
    table["lowest client"] = table["method"].map(lowest).astype(float)
    # A mean of accuracies of 100 % may come out a rounding above it.
    accuracy = list(np.minimum(numbers(table, "accuracy") / 100, 1))
    table[C3] = c3_scores(accuracy, *used(table), budgets)
    counted = list(numbers(table, COUNTED)), list(numbers(table, FORWARD))
    table[COUNTED_C3] = c3_scores(accuracy, *counted, budgets)
    return table[list(SUMMARY_COLUMNS)]


def _summary_row(method: str, folders: Sequence[Path], last: int) -> dict[str, object]:
    rounds = [
        required_table(folder, "rounds.csv", ("round", "accuracy"))
        for folder in runs_of(method, folders)
    ]
    lengths = [int(numbers(table, "round").max()) for table in rounds]
    if len(set(lengths)) > 1:
        raise DataError(f"method {method!r}: its runs differ in their number of rounds: {lengths}")
    end = lengths[0]
    accuracy = [mean_accuracy(table, end - last, end) for table in rounds]
    previous = [mean_accuracy(table, end - 2 * last, end - last) for table in rounds]
    best = [best_accuracy(table) for table in rounds]
    up, down, seconds = np.array([client_costs(folder) for folder in folders]).mean(axis=0)
    totals = [run_totals(folder) for folder in folders]

    def mean(name: str, unit: float) -> float:
        return float(np.mean([getattr(total, name) for total in totals])) / unit

    return {
        "method": method,
        "seeds": len(folders),
        "rounds": end,
        "accuracy": float(np.mean(accuracy)),
        "spread": spread(accuracy),
        "previous": float(np.mean(previous)),
        "best": float(np.mean(best)),
        "uplink MB per client and round": float(up) / BYTES_PER_MEGABYTE,
        "downlink MB per client and round": float(down) / BYTES_PER_MEGABYTE,
        "client seconds per round": float(seconds),
        UPLINK: mean("uplink_bytes", BYTES_PER_GIGABYTE),
        DOWNLINK: mean("downlink_bytes", BYTES_PER_GIGABYTE),
        COMPUTE: mean("client_ops", OPS_PER_UNIT),
        "total T multiply-adds": mean("total_ops", OPS_PER_UNIT),
        COUNTED: mean("counted_bytes", BYTES_PER_GIGABYTE),
        FORWARD: mean("client_forward_ops", OPS_PER_UNIT),
        "total T multiply-adds forward": mean("total_forward_ops", OPS_PER_UNIT),
    }
