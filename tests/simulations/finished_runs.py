"""Builds folders of finished runs, for tests of what compares them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from simulations.settings import RunSettings


def write_finished(folder: Path, settings: RunSettings, accuracies: Sequence[float | None]) -> Path:
    """Write a finished run with rounds 0, 1, ... of these accuracies, and return its folder.

    A round takes 2 MB up and 4 MB down, and 3 s of its one client.
    """
    folder.mkdir(parents=True)
    settings.save(folder / "config.toml")
    rows = [
        {
            "round": number,
            "accuracy": accuracy,
            "loss": 1.0,
            "train_loss": 0.9,
            "sparsity": settings.zerofl.sparsity,
            "uplink_bytes": 2_000_000 if number else 0,
            "downlink_bytes": 4_000_000 if number else 0,
            "train_seconds": 3.0,
            "round_seconds": 2.0,
            "nonzero_ratio": 0.25,
            "mask_overlap": 0.9,
            "failures": 0,
        }
        for number, accuracy in enumerate(accuracies)
    ]
    pd.DataFrame(rows).to_csv(folder / "rounds.csv", index=False)
    clients = [
        {
            "round": number,
            "partition_id": 0,
            "uplink_bytes": 2_000_000,
            "downlink_bytes": 4_000_000,
            "train_seconds": 3.0,
            "failure": "",
        }
        for number in range(1, len(accuracies))
    ]
    pd.DataFrame(clients).to_csv(folder / "clients.csv", index=False)
    (folder / "model.npz").write_bytes(b"a model")
    return folder


def add_columns(folder: Path, **values: float) -> None:
    """Give each trained round of a run these values in new columns; round 0 has zeros."""
    rounds = pd.read_csv(folder / "rounds.csv")
    for name, value in values.items():
        rounds[name] = value * (rounds["round"] > 0)
    rounds.to_csv(folder / "rounds.csv", index=False)


def add_compute(folder: Path, client: float, server: float) -> None:
    """Give each trained round these multiply-adds, of which a third are forward."""
    add_columns(
        folder,
        client_forward_ops=client / 3,
        client_ops=client,
        server_forward_ops=server / 3,
        server_ops=server,
    )


def add_tests(folder: Path, accuracies: Sequence[Sequence[float | None]]) -> None:
    """Write ``tests.csv``: per trained round the accuracy of clients 0, 1, ...; None failed."""
    rows = [
        {
            "round": number,
            "partition_id": client,
            "num_examples": 10,
            "accuracy": accuracy,
            "loss": 1.0,
            "failure": "" if accuracy is not None else "client: out of memory",
        }
        for number, row in enumerate(accuracies, start=1)
        for client, accuracy in enumerate(row)
    ]
    pd.DataFrame(rows).to_csv(folder / "tests.csv", index=False)
