"""Builds run folders in the recorder's format, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def write_masks(
    run: Path, rounds: list[int], layers: dict[str, NDArray[np.bool_]], step: int = 7
) -> None:
    """Write zero_positions.npz; `layers` holds the kept mask (rounds, positions) of each layer."""
    arrays: dict[str, NDArray[np.generic]] = {"rounds": np.array(rounds, dtype=np.int64)}
    for name, kept in layers.items():
        arrays[f"{name}/positions"] = np.arange(kept.shape[1], dtype=np.int64) * step
        arrays[f"{name}/kept"] = np.packbits(kept, axis=1)
    np.savez(run / "zero_positions.npz", allow_pickle=False, **arrays)


def drifting_masks(rounds: int, positions: int, keep: float, seed: int) -> NDArray[np.bool_]:
    """Masks that mostly stay: magnitudes follow a slow random walk, the top share is kept."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=positions)
    kept = np.zeros((rounds, positions), dtype=np.bool_)
    count = max(1, round(keep * positions))
    for row in kept:
        row[np.argsort(-np.abs(values), kind="stable")[:count]] = True
        values += generator.normal(scale=0.05, size=positions)
    return kept


def write_run(
    run: Path,
    *,
    rounds: int = 12,
    clients: int = 10,
    layers: int = 3,
    classes: int = 10,
    positions: int = 600,
    seed: int = 0,
) -> Path:
    """Write a run folder with made-up, plausible figures into `run`, and return it."""
    run.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    number = np.arange(rounds + 1)
    trained = number[1:]
    accuracy = 0.1 + 0.7 * (1 - np.exp(-number / (rounds / 3)))
    accuracy += generator.normal(0, 0.01, rounds + 1)
    empty_first = np.r_[np.nan, np.ones(rounds)]
    pd.DataFrame(
        {
            "round": number,
            "loss": 2.3 - 2 * accuracy,
            "accuracy": accuracy,
            "uplink_bytes": 4_100_000 * empty_first,
            "downlink_bytes": 9_300_000 * empty_first,
            "train_seconds": 12.5 * empty_first,
        }
    ).to_csv(run / "rounds.csv", index=False)
    pd.DataFrame(
        {
            "round": np.repeat(trained, 2),
            "partition_id": np.tile([0, 1], rounds),
            "uplink_bytes": 2_050_000,
            "downlink_bytes": 4_650_000,
            "train_seconds": 6.25,
            "failure": None,
        }
    ).to_csv(run / "clients.csv", index=False)
    names = [f"layer{i // 4 + 1}.{i % 4 // 2}.conv{i % 2 + 1}.weight" for i in range(layers)]
    rows = []
    for depth, name in enumerate(names):
        for t in trained:
            first = t == 1
            rise = 1 - np.exp(-t / 4)
            noise = generator.normal(0, 0.004)
            rows.append(
                {
                    "round": t,
                    "layer": name,
                    "parameters": 1000 * (depth + 1),
                    "nonzero_ratio": 0.2 + 0.02 * depth + 0.1 * np.exp(-t / 9) + noise,
                    "mask_overlap": np.nan if first else 0.55 + 0.4 * rise - 0.01 * depth + noise,
                    "zero_overlap": np.nan if first else 0.97 + 0.025 * rise - 0.0005 * depth,
                }
            )
    table = pd.DataFrame(rows).sort_values(["round"], kind="stable")
    table.to_csv(run / "layers.csv", index=False)
    masks = {
        name: drifting_masks(rounds, positions, 0.05 + 0.05 * (depth % 2), seed + depth)
        for depth, name in enumerate(names)
    }
    write_masks(run, [int(t) for t in trained], masks)
    shares = generator.dirichlet(np.ones(classes), size=clients)
    counts = np.stack([generator.multinomial(300, share) for share in shares])
    partitions = pd.DataFrame(counts, columns=[str(c) for c in range(classes)])
    partitions.insert(0, "partition_id", np.arange(clients))
    partitions.to_csv(run / "partitions.csv", index=False)
    return run


def seed_run(folder: Path, accuracies: list[float | None]) -> Path:
    """Write rounds 0, 1, ... with these accuracies; 1 MB up, 3 MB down, 2 s of training a round."""
    folder.mkdir()
    rounds = [
        f"{t},{'' if a is None else a},{1_000_000 * (t > 0)},{3_000_000 * (t > 0)},{2 * (t > 0)}"
        for t, a in enumerate(accuracies)
    ]
    header = "round,accuracy,uplink_bytes,downlink_bytes,train_seconds"
    (folder / "rounds.csv").write_text("\n".join([header, *rounds]) + "\n")
    (folder / "clients.csv").write_text(
        "round,partition_id,num_examples,downlink_bytes,uplink_bytes,train_seconds,failure\n"
        "1,0,30,2000000,250000,1.0,\n"
        "1,1,30,2000000,750000,2.0,\n"
        "2,2,30,5000000,9000000,7.0,client 2: values are not finite\n"
    )
    return folder
