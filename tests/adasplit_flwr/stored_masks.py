"""A store of small masks, and what training does to them here: a fixed change of each record."""

from __future__ import annotations

from pathlib import Path

import torch

from adasplit_flwr.mask_store import MaskStore

LENGTH = 6
RECORD_BYTES = 3 * LENGTH * 8
Content = tuple[list[list[float]], int]


def fresh(client: int) -> torch.Tensor:
    return torch.arange(LENGTH, dtype=torch.float64) + 100 * client


def store(folder: Path | None, *, records: int = 1, length: int = LENGTH) -> MaskStore:
    """Make a store with room for so many records in memory."""
    return MaskStore(
        length,
        torch.float64,
        make=fresh,
        folder=folder,
        memory_budget_bytes=records * 3 * length * 8 + 7,
    )


def train(masks: MaskStore, client: int, step: float = 1.0) -> None:
    """Change all of a client's record."""
    record = masks.record(client)
    for row, change in enumerate((0.5, 0.25, 0.125)):
        record.values[row] += change * step
    record.steps += 1
    masks.changed(client)


def content(masks: MaskStore, client: int) -> Content:
    record = masks.record(client)
    return record.values.tolist(), record.steps


def after(client: int, steps: int) -> Content:
    """Say what so many calls of :func:`train` make of a record."""
    changes = [torch.full((LENGTH,), change * steps).double() for change in (0.5, 0.25, 0.125)]
    return torch.stack([fresh(client) + changes[0], *changes[1:]]).tolist(), steps
