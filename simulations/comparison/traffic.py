"""What the bytes of each method are: one row a method, megabytes up and down by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulations.comparison.costs import required_table
from simulations.run_files import BYTES_PER_MEGABYTE, numbers, read_table
from strategies.traffic import CATEGORIES

_COLUMNS = [f"{way}_{category}" for way in ("up", "down") for category in CATEGORIES]


def traffic_table(runs: Mapping[str, Sequence[Path]]) -> pd.DataFrame:
    """Add up the traffic of each method's clients, by what it is.

    Parameters
    ----------
    runs : Mapping[str, Sequence[Path]]
        Per method its run folders, one a seed.

    Returns
    -------
    pandas.DataFrame
        Columns ``method``, then ``up activations`` to ``down protocol``: megabytes (10^6 bytes) of
        all clients' training messages in a whole run, a mean over seeds. Methods of which a run
        does not tell all of its rounds, as those of older versions, have no row.

    Raises
    ------
    DataError
        If ``clients.csv`` is missing, or ``traffic.csv`` is broken or lacks a column.
    """
    rows = []
    for method, folders in runs.items():
        totals = [_totals(folder) for folder in folders]
        known = [total for total in totals if total is not None]
        if known and len(known) == len(totals):
            rows.append([method, *np.mean(known, axis=0) / BYTES_PER_MEGABYTE])
    return pd.DataFrame(rows, columns=["method", *(name.replace("_", " ") for name in _COLUMNS)])


def _totals(folder: Path) -> NDArray[np.float64] | None:
    traffic = read_table(folder / "traffic.csv", ("round", *_COLUMNS))
    if traffic is None:
        return None
    clients = required_table(folder, "clients.csv", ("round",))
    if len(traffic) != len(clients):  # an older version began the run
        return None
    return np.array([np.nansum(numbers(traffic, column)) for column in _COLUMNS])
