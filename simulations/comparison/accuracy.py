"""How accurate a run was in the end: its mean, its best round, and client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simulations.comparison.costs import runs_of
from simulations.run_files import numbers, read_table

CLIENT_COLUMNS = ("method", "client", "seeds", "accuracy", "spread")


def mean_accuracy(rounds: pd.DataFrame, after: int, until: int) -> float:
    """Return the mean accuracy in percent of the trained rounds in (after, until], or NaN."""
    number, accuracy = numbers(rounds, "round"), numbers(rounds, "accuracy")
    inside = (number > max(after, 0)) & (number <= until) & np.isfinite(accuracy)
    return 100 * float(accuracy[inside].mean()) if inside.any() else float("nan")


def best_accuracy(rounds: pd.DataFrame) -> float:
    """Return the best trained round's accuracy in percent, or NaN."""
    accuracy = numbers(rounds, "accuracy")[numbers(rounds, "round") > 0]
    return 100 * float(np.nanmax(accuracy)) if np.isfinite(accuracy).any() else float("nan")


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
        How many rounds at the end count.

    Returns
    -------
    pandas.DataFrame
        The columns of `CLIENT_COLUMNS`: `client` is the partition id, `accuracy` in percent the
        mean over the client's tests, then over seeds; `spread` its sample standard deviation over
        seeds, NaN for one seed.

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
    """Return the mean accuracy in percent over the last rounds by partition id."""
    table = read_table(folder / "tests.csv", ("round", "partition_id", "accuracy"))
    rounds = read_table(folder / "rounds.csv", ("round",))
    if table is None or rounds is None:
        return {}
    table = table[numbers(table, "round") > numbers(rounds, "round").max() - last]
    known = table[np.isfinite(numbers(table, "accuracy")) & table["partition_id"].notna()]
    means = 100 * known.groupby("partition_id")["accuracy"].mean()
    return {int(client): float(value) for client, value in means.items()}
