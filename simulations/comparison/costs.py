"""What a run cost, from its tables: bytes, multiply-adds, seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulations.run_files import numbers, read_table
from zerofl_flwr.errors import DataError
from zerofl_flwr.memory import MEMORY

CLIENT_OPS = "client_ops"
_COUNTED = ("uplink_bytes_counted", "downlink_bytes_counted")


@dataclass(frozen=True)
class Totals:
    """What all clients, and the server, spent in all rounds of training; NaN for what is not known.

    Attributes
    ----------
    uplink_bytes, downlink_bytes : float
        Of serialized messages. Tests are not among them.
    counted_bytes : float
        Both ways as AdaSplit's authors count: four bytes a number that is not zero, of activations,
        gradients and weights, and nothing else.
    client_ops, total_ops : float
        Multiply-adds, backward pass included; of the clients, and of the server too.
    client_forward_ops, total_forward_ops : float
        The same of forward passes alone, as AdaSplit's authors count.
    """

    uplink_bytes: float
    downlink_bytes: float
    counted_bytes: float
    client_ops: float
    total_ops: float
    client_forward_ops: float
    total_forward_ops: float


def run_totals(folder: Path) -> Totals:
    """Add up a run's rounds.

    Runs of older versions have neither counted bytes nor multiply-adds.

    Raises
    ------
    DataError
        If ``rounds.csv`` is missing, or has no bytes.
    """
    rounds = required_table(folder, "rounds.csv", ("uplink_bytes", "downlink_bytes"))

    def total(*columns: str) -> float:
        return sum(_total(rounds, column) for column in columns)

    return Totals(
        uplink_bytes=float(np.nansum(numbers(rounds, "uplink_bytes"))),
        downlink_bytes=float(np.nansum(numbers(rounds, "downlink_bytes"))),
        counted_bytes=total(*_COUNTED),
        client_ops=total(CLIENT_OPS),
        total_ops=total(CLIENT_OPS, "server_ops"),
        client_forward_ops=total("client_forward_ops"),
        total_forward_ops=total("client_forward_ops", "server_forward_ops"),
    )


def client_costs(folder: Path) -> tuple[float, float, float]:
    """Return mean bytes up, bytes down and training seconds per client and round.

    Means over good replies; the bytes down over every client that was asked. NaN where nobody ever
    was, as a budget may have it.

    Raises
    ------
    DataError
        If ``clients.csv`` is missing or lacks a column, or no client ever replied well.
    """
    columns = ("uplink_bytes", "downlink_bytes", "train_seconds", "failure")
    clients = _asked_clients(folder, columns)
    if clients is None:
        return (float("nan"),) * 3
    good = clients[clients["failure"].isna()]
    if good.empty:
        raise DataError(f"{folder / 'clients.csv'}: no client ever replied well")
    return (
        float(numbers(good, "uplink_bytes").mean()),
        float(numbers(clients, "downlink_bytes").mean()),
        float(numbers(good, "train_seconds").mean()),
    )


def client_memory(folder: Path) -> float:
    """Return the most megabytes that a client's process took; NaN where no client told.

    Raises
    ------
    DataError
        If ``clients.csv`` is missing.
    """
    clients = _asked_clients(folder)
    told = np.array([])
    if clients is not None and MEMORY in clients:
        told = numbers(clients, MEMORY)
    return float(max(told[np.isfinite(told)], default=np.nan))


def summed_up(rounds: pd.DataFrame, *columns: str) -> NDArray[np.float64]:
    """Return columns of ``rounds.csv`` added to each other and summed up to each row."""
    return np.cumsum(sum(np.nan_to_num(numbers(rounds, column)) for column in columns))


def knows_compute(folder: Path) -> bool:
    """Say whether a run counted its clients' multiply-adds."""
    return not np.isnan(run_totals(folder).client_ops)


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


def _asked_clients(folder: Path, columns: Sequence[str] = ()) -> pd.DataFrame | None:
    """Read ``clients.csv``; None where the rounds say that nobody was ever asked."""
    table = read_table(folder / "clients.csv", columns)
    if table is None:
        rounds = required_table(folder, "rounds.csv", ())
        if "clients" in rounds and (numbers(rounds, "clients") == 0).all():
            return None
        return required_table(folder, "clients.csv", columns)
    return table


def _total(rounds: pd.DataFrame, column: str) -> float:
    values = numbers(rounds, column) if column in rounds else np.array([])
    return float(np.nansum(values)) if np.isfinite(values).any() else float("nan")
