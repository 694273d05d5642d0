"""Reads what AdaSplit adds to a run folder, and puts it into arrays by round and client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulations.run_files import numbers, read_table
from zerofl_flwr.errors import DataError
from zerofl_flwr.npz import load_npz


@dataclass(frozen=True, eq=False)
class ByClient:
    """One figure of each client by round.

    Attributes
    ----------
    rounds : NDArray[np.int64]
        Shape (R,), ascending.
    clients : NDArray[np.int64]
        Shape (N,), partition ids, ascending.
    values : NDArray[np.float64]
        Shape (R, N), NaN where there is none.
    """

    rounds: NDArray[np.int64]
    clients: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UploadTable:
    """What each client did in each round: nothing, train, upload, or fail.

    Attributes
    ----------
    rounds : NDArray[np.int64]
        Shape (R,), without a gap.
    clients : NDArray[np.int64]
        Shape (N,), partition ids, ascending.
    asked, uploaded, failed : NDArray[np.bool_]
        Shape (N, R). Who was asked trained; who failed counts as asked, and not as uploaded.
    """

    rounds: NDArray[np.int64]
    clients: NDArray[np.int64]
    asked: NDArray[np.bool_]
    uploaded: NDArray[np.bool_]
    failed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ClientMasks:
    """The clients' masks at the end of a run.

    Attributes
    ----------
    clients : NDArray[np.int64]
        Shape (N,), partition ids of those whose masks were trained.
    density : NDArray[np.float64]
        Shape (N,), how much of the server part each lets through, in [0, 1].
    overlap : NDArray[np.float64]
        Shape (N, N), of the positions where either of two masks is positive, the share where both
        are.
    """

    clients: NDArray[np.int64]
    density: NDArray[np.float64]
    overlap: NDArray[np.float64]


def read_own(path: Path, own: str, *columns: str) -> pd.DataFrame | None:
    """Read a table that other methods write as well.

    Parameters
    ----------
    path : Path
        The file.
    own : str
        Column that only AdaSplit's table has.
    *columns : str
        Columns that it must have then, besides ``round``.

    Returns
    -------
    pandas.DataFrame or None
        The table; None when there is none, it is empty, or it is another method's.

    Raises
    ------
    DataError
        If the file is no CSV table, or is AdaSplit's and lacks a column.
    """
    table = read_table(path)
    if table is None or own not in table.columns:
        return None
    return read_table(path, ("round", own, *columns))


def by_client(table: pd.DataFrame, column: str) -> ByClient | None:
    """Spread a column over the rounds and clients that have a finite value of it.

    Parameters
    ----------
    table : pandas.DataFrame
        With ``round`` and ``partition_id``; rows without an id are left out.
    column : str
        Which values.

    Returns
    -------
    ByClient or None
        None when nothing is left.

    Raises
    ------
    DataError
        If something in one of the three columns is no number.
    """
    number, client, value = (numbers(table, name) for name in ("round", "partition_id", column))
    known = np.isfinite(number) & np.isfinite(client) & np.isfinite(value)
    if not known.any():
        return None
    rounds, row = np.unique(number[known].astype(np.int64), return_inverse=True)
    clients, place = np.unique(client[known].astype(np.int64), return_inverse=True)
    values = np.full((rounds.size, clients.size), np.nan)
    values[row, place] = value[known]
    return ByClient(rounds, clients, values)


def global_start(run: Path) -> int | None:
    """Return the first round of the global phase; None before it, or if there is no local one."""
    table = read_own(run / "rounds.csv", "phase")
    if table is None:
        return None
    rounds, is_global = numbers(table, "round"), (table["phase"] == "global").to_numpy()
    if not is_global.any() or rounds[is_global].min() == rounds.min():
        return None
    return int(rounds[is_global].min())


def read_client_masks(path: Path) -> ClientMasks | None:
    """Read ``mask_summary.npz``.

    Parameters
    ----------
    path : Path
        The file: ``clients`` of shape (N,), ``density`` (N,), and ``overlap`` (N, N).

    Returns
    -------
    ClientMasks or None
        None when there is no such file, or no mask in it.

    Raises
    ------
    DataError
        If the file is broken, or its arrays do not fit together.
    """
    if not path.is_file():
        return None
    arrays = load_npz(path, what="file of masks")
    count = arrays["clients"].size if "clients" in arrays else 0
    for name, shape in (("clients", (count,)), ("density", (count,)), ("overlap", (count, count))):
        if name not in arrays:
            raise DataError(f"{path}: the array {name!r} is missing")
        array = arrays[name]
        if array.shape != shape or array.dtype.kind not in "iuf":
            raise DataError(
                f"{path}: {name!r} should be numbers of shape {shape} for {count} clients, but is "
                f"{array.dtype} of shape {array.shape}"
            )
    if not count:
        return None
    return ClientMasks(
        arrays["clients"].astype(np.int64),
        arrays["density"].astype(np.float64),
        arrays["overlap"].astype(np.float64),
    )


def read_uploads(run: Path) -> UploadTable | None:
    """Read from ``clients.csv`` who was asked, uploaded, or failed, and when.

    Parameters
    ----------
    run : Path
        The run folder. Clients of ``partitions.csv`` that were never asked have a row as well.

    Returns
    -------
    UploadTable or None
        None when nobody was asked, or the run is another method's.

    Raises
    ------
    DataError
        If a table is broken or lacks a column.
    """
    table = read_own(run / "clients.csv", "picked", "partition_id", "failure")
    if table is None:
        return None
    table = table[table["partition_id"].notna()]
    if table.empty:
        return None
    number, client = (numbers(table, name).astype(np.int64) for name in ("round", "partition_id"))
    everybody = read_table(run / "partitions.csv", ("partition_id",))
    clients = np.unique(client)
    if everybody is not None:
        clients = np.union1d(clients, numbers(everybody, "partition_id").astype(np.int64))
    rounds = np.arange(number.min(), number.max() + 1)
    cells = np.searchsorted(clients, client), number - rounds[0]
    failed = table["failure"].notna().to_numpy()
    flags = {
        "asked": np.ones(failed.size, np.bool_),
        "uploaded": (numbers(table, "picked") == 1) & ~failed,
        "failed": failed,
    }
    maps = {name: np.zeros((clients.size, rounds.size), np.bool_) for name in flags}
    for name, values in flags.items():
        maps[name][cells] = values
    return UploadTable(rounds, clients, **maps)
