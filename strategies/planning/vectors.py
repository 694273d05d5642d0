"""Rows of costs, one a client, and what some of the clients cost together at the most."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from strategies.traffic import CATEGORIES, Breakdown

Row = NDArray[np.int64]
"""A cost for each of :data:`COLUMNS`."""

_TRAFFIC = (*CATEGORIES, "counted")
_DOWN, _UP = [f"down_{name}" for name in _TRAFFIC], [f"up_{name}" for name in _TRAFFIC]
_WORK = (
    *("trained", "returned", "learned", "uploads"),
    *("client_forward_ops", "client_ops", "server_forward_ops", "server_ops"),
)
_LEAST = ("least_steps", "least_learned")
COLUMNS = (*_DOWN, *_UP, *_WORK, *_LEAST)
PROMISED = np.array([name in _LEAST for name in COLUMNS])
"""Columns of what is done at the least: negative, so that the most of them is the least."""
_PLACE = {name: place for place, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class Spent:
    """What is spent in a run's training; tests are not in it.

    Parameters
    ----------
    down, up : Breakdown
        Bytes of serialized messages, by what they are.
    trained, returned, learned : int
        Samples that clients trained on; whose gradients came back to them; and that the server
        learned from.
    uploads : int
        How often a client uploaded activations.
    client_forward_ops, client_ops, server_forward_ops, server_ops : int
        Multiply-adds, of forward passes alone and with the backward passes.
    """

    down: Breakdown
    up: Breakdown
    trained: int
    returned: int
    learned: int
    uploads: int
    client_forward_ops: int
    client_ops: int
    server_forward_ops: int
    server_ops: int

    @property
    def downlink_bytes(self) -> int:
        """Bytes to clients."""
        return sum(self.down.by_category().values())

    @property
    def uplink_bytes(self) -> int:
        """Bytes from clients."""
        return sum(self.up.by_category().values())

    @property
    def bytes(self) -> int:
        """Bytes both ways."""
        return self.downlink_bytes + self.uplink_bytes

    @property
    def forward_ops(self) -> int:
        """Multiply-adds of clients and server, of forward passes alone."""
        return self.client_forward_ops + self.server_forward_ops

    @property
    def ops(self) -> int:
        """Multiply-adds of clients and server, with the backward passes."""
        return self.client_ops + self.server_ops


def row_of(down: Breakdown, up: Breakdown, **work: int) -> Row:
    """Write a row: bytes of two messages, and what else is named as in :data:`COLUMNS`."""
    row = np.zeros(len(COLUMNS), np.int64)
    for prefix, breakdown in (("down", down), ("up", up)):
        for name in _TRAFFIC:
            row[_PLACE[f"{prefix}_{name}"]] = getattr(breakdown, name)
    for name, value in work.items():
        row[_PLACE[name]] = value
    return row


def spent(row: Row) -> Spent:
    """Read a row."""
    values = dict(zip(COLUMNS, row.tolist(), strict=True))
    down, up = (
        Breakdown(**{name: values[f"{prefix}_{name}"] for name in _TRAFFIC})
        for prefix in ("down", "up")
    )
    work = {field.name: values[field.name] for field in fields(Spent) if field.name in values}
    return Spent(down, up, **work)


def promised(row: Row, name: str) -> int:
    """Read what is done at the least."""
    return -int(row[_PLACE[name]])


def most(rows: NDArray[np.int64], count: int) -> tuple[Row, bool]:
    """Add up the largest of some clients' rows, in each column by itself.

    Parameters
    ----------
    rows : NDArray of int64, shape (clients, columns)
        One row a client.
    count : int
        How many clients it will be, from 0 to all.

    Returns
    -------
    row : NDArray of int64, shape (columns,)
        Which no choice of so many clients exceeds.
    exact : bool
        Whether every choice comes to just that.
    """
    if count in (0, len(rows)):
        return rows[:count].sum(axis=0), True
    largest: Row = np.sort(rows, axis=0)[len(rows) - count :].sum(axis=0)
    return largest, bool((rows == rows[0]).all())


def number_size(number: int) -> tuple[int, int]:
    """Return how long a whole number is, in decimal and in binary: messages depend on no more."""
    return len(str(number)), number.bit_length()
