"""Whose tests an accuracy is of: as a run recorded it, or the mean over its clients' own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from simulations.comparison.costs import required_table, runs_of
from simulations.run_files import numbers, read_table
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.naming import unknown_name

Tests = Literal["recorded", "clients"]

RECORDED: Tests = "recorded"
CLIENTS: Tests = "clients"


def checked_tests(value: str) -> Tests:
    """Return whose tests count, as a file or the command line has it.

    Raises
    ------
    SettingsError
        If it is neither of the two.
    """
    for known in (RECORDED, CLIENTS):
        if value == known:
            return known
    raise SettingsError(unknown_name("choice of tests", value, (RECORDED, CLIENTS)))


def read_rounds(folder: Path, tests: Tests = RECORDED, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Read a run's rounds, with the accuracy that counts.

    Parameters
    ----------
    folder : Path
        The run's.
    tests : {"recorded", "clients"}, optional
        ``"clients"`` replaces `accuracy` of each tested round by the mean over the clients that
        tested then, each counting once.
    columns : sequence of str, optional
        Those that the table must have, beside ``round`` and ``accuracy``.

    Returns
    -------
    pandas.DataFrame
        ``rounds.csv``; `accuracy` in [0, 1], NaN where there was no test.

    Raises
    ------
    DataError
        If a table is missing or lacks a column.
    """
    rounds = required_table(folder, "rounds.csv", ("round", "accuracy", *columns))
    if tests == RECORDED:
        return rounds
    known = client_tests(folder)
    if known is None:
        raise DataError(_without_tests(folder))
    return rounds.assign(accuracy=rounds["round"].map(known.groupby("round")["accuracy"].mean()))


def client_tests(folder: Path) -> pd.DataFrame | None:
    """Return the good tests of a run's clients, or None where clients do not test.

    Tests of other rounds than those with an `accuracy` in ``rounds.csv`` are left out.

    Returns
    -------
    pandas.DataFrame or None
        Columns ``round``, from 1, ``partition_id`` and ``accuracy`` in [0, 1], at least; none of
        their values is NaN.

    Raises
    ------
    DataError
        If a table is broken or lacks a column, or ``rounds.csv`` is missing.
    """
    table = read_table(folder / "tests.csv", ("round", "partition_id", "accuracy"))
    if table is None:
        return None
    rounds = required_table(folder, "rounds.csv", ("round", "accuracy"))
    tested = numbers(rounds, "round")[np.isfinite(numbers(rounds, "accuracy"))]
    good = np.isfinite(numbers(table, "accuracy")) & np.isfinite(numbers(table, "partition_id"))
    return table[good & np.isin(numbers(table, "round"), tested[tested > 0])]


def check_client_tests(runs: Mapping[str, Sequence[Path]]) -> None:
    """Refuse methods whose clients do not test, where their tests are what counts.

    Raises
    ------
    DataError
        With the method's name, and what to set.
    """
    for method, folders in runs.items():
        for folder in runs_of(method, folders):
            if client_tests(folder) is None:
                raise DataError(f"method {method!r}: {_without_tests(folder)}")


def _without_tests(folder: Path) -> str:
    return (
        f"{folder} has no tests.csv, as its clients did not test; set fraction-evaluate above 0 "
        "and run it again, or compare by recorded tests"
    )
