"""Divide the training rows among clients, mostly with the partitioners of flwr-datasets."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from flwr_datasets.partitioner import (
    IidPartitioner,
    InnerDirichletPartitioner,
    NaturalIdPartitioner,
    Partitioner,
    ShardPartitioner,
)
from numpy.typing import NDArray

from simulations.columns import NO_ID
from simulations.data_settings import DataSettings
from simulations.group_partitions import GROUPED, divide_groups, group_numbers, shuffled
from simulations.prepared import Prepared
from zerofl_flwr.errors import DataError
from zerofl_flwr.naming import unknown_name

DIRICHLET_DRAWS = 10
"""How many seeds are tried before Dirichlet partitions are given up."""
DIRICHLET_SEED_STEP = 1_000_003
"""Draw number d, from 0, is seeded with ``seed + d * DIRICHLET_SEED_STEP``."""

Rows = NDArray[np.int64]


def build_partitions(settings: DataSettings, source: Prepared, folder: Path) -> dict[str, Any]:
    """Divide the training rows of a source, and write the outcome into a folder.

    Parameters
    ----------
    settings : DataSettings
        The partitioner, its parameters and the seed matter.
    source : Prepared
        From `simulations.preparation.prepare_source`, or from `simulations.joined.prepare_joined`.
    folder : Path
        An existing, empty folder.

    Returns
    -------
    dict of str to JSON values
        What `simulations.preparation.prepare_partitions` promises as meta data.

    Raises
    ------
    DataError, SettingsError
        If the rows cannot be divided as asked.
    """
    rows = np.asarray(source.arrays["train_rows"])
    left_out = 0
    if settings.partitioner in GROUPED:
        groups, names = group_numbers(settings, source)
        parts = divide_groups(groups[rows], names, settings)
    else:
        rows, groups, left_out = _rows_with_an_id(settings, source, rows)
        parts = divide(groups, settings)
    parts = [rows[part] for part in parts]
    np.save(folder / "rows.npy", np.concatenate(parts).astype(np.int64))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, parts)]).astype(np.int64))
    return {"without_id": left_out}


def divide(groups: NDArray[np.int64], settings: DataSettings) -> list[Rows]:
    """Divide rows 0 to N-1 among clients.

    Parameters
    ----------
    groups : int64 array (N,)
        What to divide by: each row's label or id, as integers.
    settings : DataSettings
        The partitioner, none of `simulations.group_partitions.GROUPED`, and its parameters.

    Returns
    -------
    list of num_clients int64 arrays
        Disjoint row numbers, no array empty; of equal length if `samples_per_client` is given
        and with ``dirichlet`` and ``shards``, which leave out what cannot be dealt out evenly.

    Raises
    ------
    DataError
        If there are too few rows or ids, a partition is empty, or no Dirichlet draw works out.
    """
    wanted = settings.samples_per_client
    needed = settings.num_clients * (wanted or 1)
    if needed > groups.size:
        raise DataError(
            f"{settings.num_clients} clients with {wanted or 'at least 1'} samples each need "
            f"{needed} training samples, there are {groups.size}"
        )
    # Partitioners deal rows out in the order of the table, so shuffle it first.
    order = shuffled(groups.size, settings.seed)
    if settings.partitioner == "iid" and wanted:
        order = order[:needed]
    _, ranks = np.unique(groups[order], return_inverse=True)
    table = datasets.Dataset.from_dict({"row": order, "group": ranks.astype(np.int64)})
    divider = {
        "iid": _divide_iid,
        "dirichlet": _divide_dirichlet,
        "natural": _divide_natural,
        "shards": _divide_shards,
    }[settings.partitioner]
    parts = divider(table, settings)
    for client, part in enumerate(parts):
        if part.size == 0:
            raise DataError(f"partition {client} of {settings.num_clients} is empty")
    return parts


def _divide_iid(table: Any, settings: DataSettings) -> list[Rows]:
    return _collect(IidPartitioner(settings.num_clients), table, settings.num_clients)


def _divide_dirichlet(table: Any, settings: DataSettings) -> list[Rows]:
    size = settings.samples_per_client or len(table) // settings.num_clients
    for draw in range(DIRICHLET_DRAWS):
        partitioner = InnerDirichletPartitioner(
            partition_sizes=[size] * settings.num_clients,
            partition_by="group",
            alpha=float(settings.alpha),
            seed=settings.seed + draw * DIRICHLET_SEED_STEP,
        )
        try:
            # A client whose every likely class is used up divides by zero; that draw is void.
            with np.errstate(divide="ignore", invalid="ignore"):
                return _collect(partitioner, table, settings.num_clients)
        except ValueError as error:
            if "robabilities" not in str(error):
                raise
    raise DataError(
        f"alpha {settings.alpha} is too small to draw {settings.num_clients} equal partitions of "
        f"{size} out of {len(table)} samples: in each of {DIRICHLET_DRAWS} draws a client ran "
        "out of classes; raise alpha or lower samples_per_client"
    )


def _divide_natural(table: Any, settings: DataSettings) -> list[Rows]:
    by = settings.partition_by or "the label"
    partitioner = NaturalIdPartitioner("group")
    ids = len(table.unique("group"))
    if settings.num_clients > ids:
        raise DataError(f"{settings.num_clients} clients need as many ids, {by} has {ids}")
    with contextlib.redirect_stderr(io.StringIO()):  # it draws a progress bar
        parts = _collect(partitioner, table, settings.num_clients)
    wanted = settings.samples_per_client
    if wanted is None:
        return parts
    for client, part in enumerate(parts):
        if part.size < wanted:
            raise DataError(
                f"partition {client} has {part.size} samples, samples_per_client is {wanted}"
            )
    return [part[:wanted] for part in parts]


def _divide_shards(table: Any, settings: DataSettings) -> list[Rows]:
    wanted = settings.samples_per_client
    shards = settings.num_clients * settings.shards_per_client
    size = wanted // settings.shards_per_client if wanted else len(table) // shards
    if size == 0:
        raise DataError(
            f"{settings.num_clients} clients with {settings.shards_per_client} shards each need "
            f"at least {shards} training samples, there are {len(table)}"
        )
    partitioner = ShardPartitioner(
        settings.num_clients,
        "group",
        num_shards_per_partition=settings.shards_per_client,
        shard_size=size,
        seed=settings.seed,
    )
    return _collect(partitioner, table, settings.num_clients)


def _collect(partitioner: Partitioner, table: Any, count: int) -> list[Rows]:
    partitioner.dataset = table
    with warnings.catch_warnings():
        # Leaving samples out is what samples_per_client asks for.
        warnings.filterwarnings("ignore", message="The sum of the partition_sizes")
        parts = [partitioner.load_partition(client) for client in range(count)]
    return [np.asarray(part["row"], dtype=np.int64) for part in parts]


def _rows_with_an_id(
    settings: DataSettings, source: Prepared, rows: Rows
) -> tuple[Rows, NDArray[np.int64], int]:
    """Return the rows to divide, what to divide each by, and how many others are left out."""
    groups = _group_column(settings, source)[rows]
    without_id = groups == NO_ID
    if settings.partitioner != "natural":  # any other rule deals these rows out like the rest
        return rows, groups, 0
    return rows[~without_id], groups[~without_id], int(without_id.sum())


def _group_column(settings: DataSettings, source: Prepared) -> NDArray[np.int64]:
    """Return the integer column to divide by, one entry a row of the source."""
    name = settings.partition_by
    if name is None or settings.partitioner == "iid":
        return np.asarray(source.arrays["labels"])
    columns: dict[str, str] = source.meta["id_columns"]
    if name not in columns:
        raise DataError(unknown_name("partition_by column", name, columns))
    if columns[name] not in source.arrays:
        raise DataError(f"clients cannot be divided by it: {columns[name]}")
    return np.asarray(source.arrays[columns[name]])
