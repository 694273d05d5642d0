"""How accurate a run was in the end: its last tests, its best one, and client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulations.comparison.costs import runs_of
from simulations.comparison.tested import client_tests
from simulations.run_files import numbers

CLIENT_COLUMNS = ("method", "client", "seeds", "accuracy", "spread")


def accuracies_of_tests(rounds: pd.DataFrame) -> NDArray[np.float64]:
    """Return the accuracies in percent of the trained rounds that were tested, in their order."""
    number, accuracy = numbers(rounds, "round"), numbers(rounds, "accuracy")
    return 100 * accuracy[(number > 0) & np.isfinite(accuracy)]


def mean_of_last(accuracies: NDArray[np.float64], last: int, before: int = 0) -> float:
    """Return the mean over the last tests, apart from `before` later ones.

    Parameters
    ----------
    accuracies : NDArray[np.float64]
        One a test, shape (N,).
    last : int
        How many count, at least 1; of fewer, all that there are.
    before : int, optional
        How many at the end are left out.

    Returns
    -------
    float
        NaN if no test is left.
    """
    end = max(accuracies.size - before, 0)
    chosen = accuracies[max(end - last, 0) : end]
    return float(chosen.mean()) if chosen.size else float("nan")


def spread(values: Sequence[float]) -> float:
    """Return the sample standard deviation of one value a seed; NaN for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def client_table(runs: Mapping[str, Sequence[Path]], last: int) -> pd.DataFrame:
    """Give each client's accuracy at the end, where clients test for themselves.

    Parameters
    ----------
    runs : Mapping[str, Sequence[Path]]
        Per method its run folders, one a seed. Those without ``tests.csv`` are left out.
    last : int
        How many of a run's tests count, from its end.

    Returns
    -------
    pandas.DataFrame
        The columns of `CLIENT_COLUMNS`: `client` is the partition id, `accuracy` in percent the
        mean over the client's part in these tests, then over seeds; `spread` its sample standard
        deviation over seeds, NaN for one seed.

    Raises
    ------
    DataError
        If a table lacks a column, or a method has no runs.
    """
    rows: list[tuple[object, ...]] = []
    for method, folders in runs.items():
        seeds = [_by_client(folder, last) for folder in runs_of(method, folders)]
        for client in sorted(set[int]().union(*seeds)):
            values = [accuracy[client] for accuracy in seeds if client in accuracy]
            mean = float(np.mean(values))
            rows.append((method, client, len(values), mean, spread(values)))
    return pd.DataFrame(rows, columns=list(CLIENT_COLUMNS))


def _by_client(folder: Path, last: int) -> dict[int, float]:
    """Return the mean accuracy in percent over the last tests by partition id."""
    known = client_tests(folder)
    if known is None:
        return {}
    counted = known[known["round"].isin(np.unique(known["round"])[-last:])]
    means = 100 * counted.groupby("partition_id")["accuracy"].mean()
    clients = means.index.to_numpy(dtype=np.int64).tolist()
    return dict(zip(clients, means.to_numpy(dtype=np.float64).tolist(), strict=True))
