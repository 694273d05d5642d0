"""One row a method: accuracy at the end, its spread over seeds, and what a client paid for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simulations.run_files import BYTES_PER_GIGABYTE, BYTES_PER_MEGABYTE, numbers, read_table
from zerofl_flwr.errors import DataError, SettingsError

SUMMARY_COLUMNS = (
    "method",
    "seeds",
    "rounds",
    "accuracy",
    "spread",
    "previous",
    "best",
    "uplink MB per client and round",
    "downlink MB per client and round",
    "client seconds per round",
    "uplink GB",
    "downlink GB",
)


def summary_table(runs: Mapping[str, Sequence[Path]], last: int = 10) -> pd.DataFrame:
    """Summarise methods in one row each.

    Parameters
    ----------
    runs : Mapping[str, Sequence[Path]]
        Per method its run folders, one a seed, all of the same number of rounds.
    last : int, optional
        How many rounds at the end `accuracy` looks at.

    Returns
    -------
    pandas.DataFrame
        The columns of `SUMMARY_COLUMNS`. Accuracies are in percent: `accuracy` is the mean over the
        evaluated rounds among the last `last`, then over seeds; `spread` its sample standard
        deviation over seeds, NaN for one seed; `previous` is as `accuracy`, over the `last` rounds
        before those; `best` is the best evaluated round's, a mean over seeds. Accuracies are NaN
        where no round was evaluated. Megabytes (10^6 bytes, of serialized messages) and training
        seconds are means over good replies; the downlink counts every client that was asked.
        Gigabytes (10^9 bytes) are those of all clients in the whole run, a mean over seeds.

    Raises
    ------
    SettingsError
        If `last` is below 1.
    DataError
        If a method has no runs, a table is missing, or its runs differ in their number of rounds.
    """
    if last < 1:
        raise SettingsError(f"last must be at least 1 round, not {last}")
    rows = [_summary_row(method, folders, last) for method, folders in runs.items()]
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def to_markdown(table: pd.DataFrame) -> str:
    """Return `table` as a Markdown table: numbers to the right, an empty cell for a missing value.

    Numbers of 1 and more carry two decimals, smaller ones three significant digits.
    """
    header = [_cell(column) for column in table.columns]
    body = [[_cell(value) for value in row] for row in table.itertuples(index=False, name=None)]
    right = [pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes]
    widths = [max(3, *(len(cell) for cell in cells)) for cells in zip(header, *body, strict=True)]
    rule = [
        "-" * (width - 1) + ":" if numeric else "-" * width
        for width, numeric in zip(widths, right, strict=True)
    ]
    lines = [
        [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(cells, widths, right, strict=True)
        ]
        for cells in (header, rule, *body)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"
    return " ".join(str(value).split()).replace("|", "\\|")


def _summary_row(method: str, folders: Sequence[Path], last: int) -> tuple[object, ...]:
    rounds = [
        required_table(folder, "rounds.csv", ("round", "accuracy"))
        for folder in runs_of(method, folders)
    ]
    lengths = [int(numbers(table, "round").max()) for table in rounds]
    if len(set(lengths)) > 1:
        raise DataError(f"method {method!r}: its runs differ in their number of rounds: {lengths}")
    end = lengths[0]
    accuracy = np.array([_mean_accuracy(table, end - last, end) for table in rounds])
    previous = np.array([_mean_accuracy(table, end - 2 * last, end - last) for table in rounds])
    best = np.array([_best_accuracy(table) for table in rounds])
    costs = np.array([_client_costs(folder) for folder in folders]).mean(axis=0)
    spread = float(accuracy.std(ddof=1)) if len(folders) > 1 else float("nan")
    up, down, seconds = (float(cost) for cost in costs)
    totals = np.array([_total_bytes(folder) for folder in folders]).mean(axis=0)
    return (
        method,
        len(folders),
        end,
        float(accuracy.mean()),
        spread,
        float(previous.mean()),
        float(best.mean()),
        up / BYTES_PER_MEGABYTE,
        down / BYTES_PER_MEGABYTE,
        seconds,
        float(totals[0]) / BYTES_PER_GIGABYTE,
        float(totals[1]) / BYTES_PER_GIGABYTE,
    )


def _mean_accuracy(rounds: pd.DataFrame, after: int, until: int) -> float:
    """Return the mean accuracy in percent of the trained rounds in (after, until], or NaN."""
    number, accuracy = numbers(rounds, "round"), numbers(rounds, "accuracy")
    inside = (number > max(after, 0)) & (number <= until) & np.isfinite(accuracy)
    return 100 * float(accuracy[inside].mean()) if inside.any() else float("nan")


def _best_accuracy(rounds: pd.DataFrame) -> float:
    accuracy = numbers(rounds, "accuracy")[numbers(rounds, "round") > 0]
    return 100 * float(np.nanmax(accuracy)) if np.isfinite(accuracy).any() else float("nan")


def _client_costs(folder: Path) -> tuple[float, float, float]:
    """Return mean bytes up, bytes down and training seconds per client and round."""
    columns = ("uplink_bytes", "downlink_bytes", "train_seconds", "failure")
    clients = required_table(folder, "clients.csv", columns)
    good = clients[clients["failure"].isna()]
    if good.empty:
        raise DataError(f"{folder / 'clients.csv'}: no client ever replied well")
    return (
        float(numbers(good, "uplink_bytes").mean()),
        float(numbers(clients, "downlink_bytes").mean()),
        float(numbers(good, "train_seconds").mean()),
    )


def _total_bytes(folder: Path) -> tuple[float, float]:
    """Return the bytes up and down of all clients in all rounds."""
    rounds = required_table(folder, "rounds.csv", ("uplink_bytes", "downlink_bytes"))
    up, down = (numbers(rounds, name) for name in ("uplink_bytes", "downlink_bytes"))
    return float(np.nansum(up)), float(np.nansum(down))


def runs_of(method: str, folders: Sequence[Path]) -> Sequence[Path]:
    """Return `folders`, or raise DataError when a method has none."""
    if not folders:
        raise DataError(f"method {method!r} has no runs")
    return folders


def required_table(folder: Path, name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Read ``folder / name``, or raise DataError when it is missing, empty or lacks a column."""
    table = read_table(folder / name, columns)
    if table is None:
        raise DataError(f"{folder / name}: the table is missing or has no rows")
    return table
