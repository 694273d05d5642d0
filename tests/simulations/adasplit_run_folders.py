"""Builds folders of AdaSplit runs in the recorder's format, for tests of what reads them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ADASPLIT_PICTURES = ("client_accuracy", "picks", "ucb_terms", "client_masks", "losses")
"""Those that no other method has."""


def write_client_masks(
    run: Path, clients: list[int], density: list[float], overlap: NDArray[np.float64]
) -> None:
    """Write mask_summary.npz."""
    np.savez(
        run / "mask_summary.npz",
        allow_pickle=False,
        clients=np.array(clients, np.int64),
        density=np.array(density, np.float64),
        overlap=overlap,
    )


def write_adasplit_run(
    run: Path,
    *,
    rounds: int = 12,
    clients: int = 5,
    asked: int | None = None,
    local_rounds: int | None = None,
    seed: int = 0,
) -> Path:
    """Write a run folder with made-up, plausible figures into `run`, and return it.

    Half of the asked clients are picked in turn; losses fall from 100 to about 1; client 1 fails
    in round 2 if it is asked.
    """
    run.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    asked = asked or clients
    local = rounds // 2 if local_rounds is None else local_rounds
    rows: dict[str, list[dict[str, object]]] = {"rounds": [], "clients": [], "tests": []}
    for number in range(1, rounds + 1):
        in_global = number > local
        progress = number / rounds
        members = sorted(generator.choice(clients, asked, replace=False).tolist())
        picked = [c for c in members if in_global and (c + number) % 2 == 0]
        for client in members:
            failed = number == 2 and client == 1
            level = 100 ** (1 - progress) * (1 + 0.1 * client / clients)
            rows["clients"].append(
                {
                    "round": number,
                    "partition_id": client,
                    "num_examples": 0 if failed else 64,
                    "downlink_bytes": 900,
                    "uplink_bytes": 2_000_000 if client in picked else 300,
                    "train_seconds": 1.5,
                    "train_loss": math.nan if failed else 3 - 2 * progress,
                    "failure": "client 1: out of memory" if failed else "",
                    "picked": client in picked,
                    "server_loss": 1.5 - progress if client in picked else math.nan,
                    "exploitation": level if in_global else math.nan,
                    "exploration": 1 + client / clients + progress if in_global else math.nan,
                    "mask_density": 0.5 - 0.1 * progress if client in picked else math.nan,
                }
            )
        accuracy = (
            0.2 + 0.6 * max(0.0, number - local) / rounds + generator.normal(0, 0.02, clients)
        )
        for client in range(clients):
            rows["tests"].append(
                {
                    "round": number,
                    "partition_id": client,
                    "num_examples": 50,
                    "trained": True,
                    "accuracy": accuracy[client],
                    "loss": 2 - progress,
                    "downlink_bytes": 9000,
                    "uplink_bytes": 200,
                    "failure": "",
                }
            )
        rows["rounds"].append(
            {
                "round": number,
                "phase": "global" if in_global else "local",
                "accuracy": accuracy.mean(),
                "train_loss": 3 - 2 * progress,
                "server_loss": 1.5 - progress if picked else math.nan,
                "uplink_bytes": 2_000_000 * len(picked),
                "downlink_bytes": 900 * asked if in_global else 0,
                "train_seconds": 1.5 * asked,
            }
        )
    for name, table in rows.items():
        pd.DataFrame(table).to_csv(run / f"{name}.csv", index=False)
    pd.DataFrame({"partition_id": range(clients), "cat": 3, "dog": 4}).to_csv(
        run / "partitions.csv", index=False
    )
    overlap = generator.uniform(0.3, 0.36, (clients, clients))
    overlap = (overlap + overlap.T) / 2
    np.fill_diagonal(overlap, 1)
    density = generator.uniform(0.4, 0.5, clients).tolist()
    write_client_masks(run, list(range(clients)), density, overlap)
    return run
