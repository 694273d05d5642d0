"""The tested rounds of all runs in one long table, from which a report's curves can be drawn."""

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


def rounds_table(comparison: Comparison) -> pd.DataFrame:
    """Return a row a tested round, and one for what came after a run's last test.

    Split methods may have ten thousand rounds, of which ten are tested. Runs' own tables have all.

    Parameters
    ----------
    comparison : Comparison
        The finished runs.

    Returns
    -------
    pandas.DataFrame
        Columns ``method``, ``seed`` and those of ``rounds.csv`` that the runs have. Bytes,
        multiply-adds, seconds, picks, failures and restarts are added up since the row before,
        NaN where no round knows; all else is that round's own.
    """
    tables = []
    for method in comparison.methods:
        for run in method.runs:
            table = _tested(pd.read_csv(run.folder / "rounds.csv"))
            table.insert(0, "seed", run.seed)
            table.insert(0, "method", method.name)
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _tested(rounds: pd.DataFrame) -> pd.DataFrame:
    is_tested = rounds["accuracy"].notna() | (rounds.index == rounds.index[-1])
    before = is_tested.shift(fill_value=False).cumsum()
    columns = [column for column in _COLUMNS if column in rounds]
    table: pd.DataFrame = rounds.loc[is_tested, columns].copy()
    for column in [column for column in _SUMMED if column in table]:
        known = pd.Series(numbers(rounds, column), index=rounds.index)
        table[column] = known.groupby(before).sum(min_count=1).to_numpy()
    return table
