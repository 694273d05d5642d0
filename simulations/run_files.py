"""Reads the tables and the mask history of a run folder, and checks them on the way in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from zerofl_flwr.errors import DataError
from zerofl_flwr.npz import load_npz

BYTES_PER_MEGABYTE = 1_000_000
"""Megabytes are decimal everywhere in this package."""

BYTES_PER_GIGABYTE = 1_000_000_000


@dataclass(frozen=True)
class SampledMasks:
    """Which sampled weights the top-K mask kept, round by round.

    Attributes
    ----------
    rounds : NDArray[np.int64]
        Shape (R,), the recorded rounds, ascending.
    positions : dict[str, NDArray[np.int64]]
        Per layer, shape (P,): the sampled flat (C-order) positions of its weight.
    kept : dict[str, NDArray[np.bool_]]
        Per layer, shape (R, P): True where the mask kept the position in that round.
    """

    rounds: NDArray[np.int64]
    positions: dict[str, NDArray[np.int64]]
    kept: dict[str, NDArray[np.bool_]]


def read_table(path: Path, columns: Collection[str] = ()) -> pd.DataFrame | None:
    """Read one CSV table of a run folder.

    Parameters
    ----------
    path : Path
        The file.
    columns : Collection[str], optional
        Columns that the table must have.

    Returns
    -------
    pandas.DataFrame or None
        The table, or None when there is no such file or it holds no rows.

    Raises
    ------
    DataError
        If the file is no CSV table or lacks one of `columns`.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return None
    try:
        table = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable CSV table: {error}") from error
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise DataError(f"{path}: columns {missing} are missing; there are {list(table.columns)}")
    return None if table.empty else table


def numbers(table: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a column as float64 of shape (rows,), NaN where the table is empty.

    Raises
    ------
    DataError
        If a value of the column is not a number.
    """
    try:
        return table[column].to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise DataError(f"column {column!r} holds something that is no number: {error}") from error


def read_mask_history(path: Path) -> SampledMasks | None:
    """Read ``zero_positions.npz``.

    Parameters
    ----------
    path : Path
        The file: ``rounds`` of shape (R,), and per layer ``<layer>/positions`` of shape (P,) and
        ``<layer>/kept`` of shape (R, ceil(P / 8)), uint8 bit-packed along the positions.

    Returns
    -------
    SampledMasks or None
        Layers in the file's order, or None when there is no such file, no round or no layer.

    Raises
    ------
    DataError
        If the file is broken or its arrays do not fit together.
    """
    if not path.is_file():
        return None
    arrays = load_npz(path, what="mask history")
    if "rounds" not in arrays:
        raise DataError(f"{path}: the array 'rounds' is missing")
    rounds = arrays["rounds"].astype(np.int64)
    positions: dict[str, NDArray[np.int64]] = {}
    kept: dict[str, NDArray[np.bool_]] = {}
    for name, packed in arrays.items():
        if not name.endswith("/kept"):
            continue
        layer = name.removesuffix("/kept")
        if f"{layer}/positions" not in arrays:
            raise DataError(f"{path}: the array '{layer}/positions' is missing")
        positions[layer] = arrays[f"{layer}/positions"].astype(np.int64)
        kept[layer] = _unpack(path, layer, packed, rounds.size, positions[layer].size)
    if rounds.size == 0 or not any(array.size for array in kept.values()):
        return None
    return SampledMasks(rounds, positions, kept)


def _unpack(
    path: Path, layer: str, packed: NDArray[np.uint8], rounds: int, positions: int
) -> NDArray[np.bool_]:
    expected = (rounds, -(-positions // 8))
    if packed.shape != expected or packed.dtype != np.uint8:
        raise DataError(
            f"{path}: layer {layer}: 'kept' should be uint8 of shape {expected} for {rounds} "
            f"rounds of {positions} positions, but is {packed.dtype} of shape {packed.shape}"
        )
    return np.unpackbits(packed, axis=1, count=positions).astype(np.bool_)
