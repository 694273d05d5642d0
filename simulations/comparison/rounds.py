"""The rounds of all runs in one long table: every one, and those from which curves are drawn."""

from __future__ import annotations

import pandas as pd

from simulations.comparison.methods import Comparison
from simulations.run_files import numbers

_SUMMED = (
    *("uplink_bytes", "downlink_bytes", "uplink_bytes_counted", "downlink_bytes_counted"),
    *("client_forward_ops", "client_ops", "server_forward_ops", "server_ops"),
    *("train_seconds", "round_seconds", "picked", "failures", "restarts"),
)
_COLUMNS = (
    *("round", "phase", "accuracy", "trained_accuracy", "learned_accuracy", "client_accuracy"),
    *("loss", "train_loss", "server_loss", "sparsity", "nonzero_ratio", "mask_overlap"),
    *("mask_density", *_SUMMED),
)
"""Those that a method's rounds have."""


def all_rounds(comparison: Comparison) -> pd.DataFrame:
    """Return every round of all runs, as it was recorded.

    Parameters
    ----------
    comparison : Comparison
        The finished runs.

    Returns
    -------
    pandas.DataFrame
        Columns ``method``, ``seed`` and those of ``rounds.csv`` that the runs have.
    """
    tables = []
    for method in comparison.methods:
        for run in method.runs:
            table = pd.read_csv(run.folder / "rounds.csv")
            table = table[[column for column in _COLUMNS if column in table]]
            table.insert(0, "seed", run.seed)
            table.insert(0, "method", method.name)
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


def rounds_table(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row a tested round, and one for what came after a run's last test.

    Split methods may have ten thousand rounds, of which ten are tested.

    Parameters
    ----------
    rounds : pandas.DataFrame
        Of :func:`all_rounds`.

    Returns
    -------
    pandas.DataFrame
        The same columns. Bytes, multiply-adds, seconds, picks, failures and restarts are added up
        since the row before, NaN where no round knows; all else is that round's own.
    """
    runs = rounds.groupby(["method", "seed"], sort=False)
    is_last = runs.cumcount(ascending=False) == 0
    is_tested = rounds["accuracy"].notna() | is_last
    row = is_tested.shift(fill_value=False).cumsum()  # ascends through all runs
    table: pd.DataFrame = rounds[is_tested].copy()
    for column in [column for column in _SUMMED if column in table]:
        known = pd.Series(numbers(rounds, column), index=rounds.index)
        table[column] = known.groupby(row).sum(min_count=1).to_numpy()
    return table
