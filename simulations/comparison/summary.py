"""One row a method: accuracy at the end, its spread over seeds, what it cost, and its C3-Score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simulations.c3 import Budgets, c3_scores
from simulations.comparison.accuracy import (
    accuracies_of_tests,
    client_table,
    mean_of_last,
    spread,
)
from simulations.comparison.costs import client_costs, client_memory, run_totals, runs_of
from simulations.comparison.tested import (
    CLIENTS,
    RECORDED,
    Tests,
    check_client_tests,
    read_rounds,
)
from simulations.run_files import BYTES_PER_GIGABYTE, BYTES_PER_MEGABYTE, numbers
from zerofl_flwr.errors import DataError, SettingsError

OPS_PER_UNIT = 1e12
"""Multiply-adds are given in T, 10^12 of them."""

TRAFFIC, UPLINK, DOWNLINK, COUNTED = "GB", "uplink GB", "downlink GB", "counted GB"
COMPUTE, FORWARD = "client T multiply-adds", "client T multiply-adds forward"
TOTAL_COMPUTE, TOTAL_FORWARD = "total T multiply-adds", "total T multiply-adds forward"
MEMORY = "client memory MB"
C3, COUNTED_C3 = "C3", "C3 as counted"
SUMMARY_COLUMNS = (
    *("method", "seeds", "accuracy", "spread", "best", "lowest client", C3),
    *(TRAFFIC, COMPUTE, TOTAL_COMPUTE),
    *("rounds", "previous", "uplink MB per client and round", "downlink MB per client and round"),
    *("client seconds per round", MEMORY, UPLINK, DOWNLINK),
    *(COUNTED, FORWARD, TOTAL_FORWARD, COUNTED_C3),
)
"""What is compared comes first."""


def used(table: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Return what C3 counts of each method of a summary: GB both ways, and T multiply-adds."""
    return list(numbers(table, TRAFFIC)), list(numbers(table, COMPUTE))


def summary_table(
    runs: Mapping[str, Sequence[Path]],
    last: int = 1,
    budgets: Budgets | None = None,
    tests: Tests = RECORDED,
) -> pd.DataFrame:
    """Summarise methods in one row each.

    Parameters
    ----------
    runs : Mapping[str, Sequence[Path]]
        Per method its run folders, one a seed, all of the same number of rounds.
    last : int, optional
        How many tests at the end of a run `accuracy` looks at.
    budgets : Budgets, optional
        Of the C3-Score, in GB and T multiply-adds; default: the largest among the methods.
    tests : {"recorded", "clients"}, optional
        Whose accuracies: as the rounds have them, or the mean over the clients that tested in a
        round, each counting once.

    Returns
    -------
    pandas.DataFrame
        The columns of `SUMMARY_COLUMNS`; NaN for what is not known. Accuracies are in percent:
        `accuracy` is the mean over each run's `last` last tests, then over seeds; `spread` its
        sample standard deviation over seeds, NaN for one seed; `best` is that of the best test, a
        mean over seeds; `previous` is as `accuracy`, over as many tests before those; `lowest
        client` the accuracy of the client that has the lowest, where clients test for themselves.
        Gigabytes (10^9 bytes) and multiply-adds (in T, 10^12, backward pass included) are those of
        all clients, or in `total` of the server too, in a whole run without its tests, a mean over
        seeds; `GB` is up and down together. `counted GB` and `forward` are as AdaSplit's authors
        count. `C3` is computed from the row's `accuracy`, its `GB` and its clients' multiply-adds;
        `C3 as counted` from `counted GB` and the forward multiply-adds. Megabytes (10^6 bytes, of
        serialized messages) and training seconds are means over good replies; the downlink counts
        every client that was asked. `client memory MB` is the most that a client's process took in
        any of the runs.

    Raises
    ------
    SettingsError
        If `last` is below 1, or a budget cannot be; if a method uses something of a budget of zero,
        it is named.
    DataError
        If a method has no runs, a table is missing, its runs differ in their number of rounds, or
        its clients do not test where their tests are asked for.
    """
    if last < 1:
        raise SettingsError(f"last must be at least 1 test, not {last}")
    if tests == CLIENTS:
        check_client_tests(runs)
    rows = [_summary_row(method, folders, last, tests) for method, folders in runs.items()]
    table = pd.DataFrame(rows, columns=[c for c in SUMMARY_COLUMNS if c not in (C3, COUNTED_C3)])
    clients = client_table(runs, last)
    lowest = clients.groupby("method")["accuracy"].min()
    table["lowest client"] = table["method"].map(lowest).astype(float)
    # A mean of accuracies of 100 % may come out a rounding above it.
    accuracy = list(np.minimum(numbers(table, "accuracy") / 100, 1))
    names = list(runs)
    table[C3] = c3_scores(accuracy, *used(table), budgets, names)
    counted = list(numbers(table, COUNTED)), list(numbers(table, FORWARD))
    table[COUNTED_C3] = c3_scores(accuracy, *counted, budgets, names)
    return table[list(SUMMARY_COLUMNS)]


def _summary_row(
    method: str, folders: Sequence[Path], last: int, tests: Tests
) -> dict[str, object]:
    rounds = [read_rounds(folder, tests) for folder in runs_of(method, folders)]
    lengths = [int(numbers(table, "round").max()) for table in rounds]
    if len(set(lengths)) > 1:
        raise DataError(f"method {method!r}: its runs differ in their number of rounds: {lengths}")
    tested = [accuracies_of_tests(table) for table in rounds]
    accuracy = [mean_of_last(values, last) for values in tested]
    previous = [mean_of_last(values, last, before=last) for values in tested]
    best = [max(values, default=float("nan")) for values in tested]
    up, down, seconds = np.array([client_costs(folder) for folder in folders]).mean(axis=0)
    memory = np.array([client_memory(folder) for folder in folders])
    totals = [run_totals(folder) for folder in folders]

    def mean(name: str, unit: float) -> float:
        return float(np.mean([getattr(total, name) for total in totals])) / unit

    return {
        "method": method,
        "seeds": len(folders),
        "rounds": lengths[0],
        "accuracy": float(np.mean(accuracy)),
        "spread": spread(accuracy),
        "previous": float(np.mean(previous)),
        "best": float(np.mean(best)),
        "uplink MB per client and round": float(up) / BYTES_PER_MEGABYTE,
        "downlink MB per client and round": float(down) / BYTES_PER_MEGABYTE,
        "client seconds per round": float(seconds),
        MEMORY: float(np.fmax.reduce(memory)),
        TRAFFIC: mean("uplink_bytes", BYTES_PER_GIGABYTE)
        + mean("downlink_bytes", BYTES_PER_GIGABYTE),
        UPLINK: mean("uplink_bytes", BYTES_PER_GIGABYTE),
        DOWNLINK: mean("downlink_bytes", BYTES_PER_GIGABYTE),
        COMPUTE: mean("client_ops", OPS_PER_UNIT),
        TOTAL_COMPUTE: mean("total_ops", OPS_PER_UNIT),
        COUNTED: mean("counted_bytes", BYTES_PER_GIGABYTE),
        FORWARD: mean("client_forward_ops", OPS_PER_UNIT),
        TOTAL_FORWARD: mean("total_forward_ops", OPS_PER_UNIT),
    }
