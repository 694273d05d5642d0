"""Give each client a group of samples of its own: one data set, or a few classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulations.data_settings import DataSettings, check_whole_groups
from simulations.prepared import Prepared
from zerofl_flwr.errors import DataError

GROUPED = ("dataset", "classes")
"""The partitioners that divide so."""

_SHUFFLE_STREAM = 1  # sets this draw apart from the partitioner's of the same seed

Rows = NDArray[np.int64]


def shuffled(size: int, seed: int) -> Rows:
    """Draw the order in which so many rows are dealt out, int64 (size,)."""
    return np.random.default_rng((seed, _SHUFFLE_STREAM)).permutation(size)


def group_numbers(settings: DataSettings, source: Prepared) -> tuple[NDArray[np.int64], list[str]]:
    """Give each row the number of the group that it belongs to.

    Parameters
    ----------
    settings : DataSettings
        With one of the `GROUPED` partitioners.
    source : Prepared
        The table that is divided, from `simulations.joined.prepare_joined` or
        `simulations.preparation.prepare_source`.

    Returns
    -------
    tuple of (int64 array (N,), list of str)
        The group of each row of the source, and the groups' names.

    Raises
    ------
    SettingsError
        If the classes cannot be dealt out to so many clients.
    """
    if settings.partitioner == "dataset":
        names = [f"data set {name}" for name in settings.datasets]
        return np.asarray(source.arrays["datasets"]), names
    class_names, size = source.meta["class_names"], settings.classes_per_client
    check_whole_groups(len(class_names), size, settings.num_clients)
    names = [
        f"the classes {', '.join(class_names[first : first + size])}"
        for first in range(0, len(class_names), size)
    ]
    return np.asarray(source.arrays["labels"]) // size, names


def divide_groups(
    groups: NDArray[np.int64], names: list[str], settings: DataSettings
) -> list[Rows]:
    """Divide rows 0 to N-1 among clients: client i gets group i modulo the number of groups.

    Each group is shuffled by itself, so that a client's samples do not depend on other groups.

    Parameters
    ----------
    groups : int64 array (N,)
        The group of each row.
    names : list of G str
        Names of groups 0 to G-1.
    settings : DataSettings
        `num_clients`, a multiple of G; clients of one group divide it evenly. Of its part, a
        client keeps the first `samples_per_client`; with ``dataset`` it may have fewer. `seed`.

    Returns
    -------
    list of num_clients int64 arrays
        Disjoint row numbers, no array empty.

    Raises
    ------
    DataError
        If a group has too few rows.
    """
    turns = settings.num_clients // len(names)
    wanted = settings.samples_per_client
    least = 1 if wanted is None or settings.partitioner == "dataset" else wanted
    parts: list[Rows] = [np.empty(0, dtype=np.int64)] * settings.num_clients
    for group, name in enumerate(names):
        rows = np.flatnonzero(groups == group)
        rows = rows[shuffled(rows.size, settings.seed)]
        if rows.size < turns * least:
            raise DataError(
                f"{turns} clients that divide {name} need at least {least} training samples each, "
                f"there are {rows.size}"
            )
        for turn, part in enumerate(np.array_split(rows, turns)):
            parts[turn * len(names) + group] = part[:wanted]
    return parts
