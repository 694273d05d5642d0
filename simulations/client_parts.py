"""What the simulated clients of all methods are built from: batches, and where a state lasts.

Flower builds a client for each message, also for one that only asks who the client is: batches are
made when they are needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from simulations.batches import EVALUATION_BATCH, LazyBatches, batches
from simulations.data import load_data
from simulations.settings import RunSettings

STATES = "clients"
"""Folder of a run with the clients' states."""


def training_batches(settings: RunSettings, partition_id: int) -> LazyBatches:
    """Return shuffled batches of a client's training samples."""
    data = load_data(settings.data)
    size = settings.training.batch_size
    return LazyBatches(lambda: batches(data.partition(partition_id).train, size, shuffle=True))


def validation_batches(settings: RunSettings, partition_id: int) -> LazyBatches | None:
    """Return batches of a client's validation samples, in their order; None if it has none."""
    data = load_data(settings.data)
    if data.validation_size(partition_id) == 0:
        return None
    return LazyBatches(lambda: batches(data.partition(partition_id).validation, EVALUATION_BATCH))


def client_options(settings: RunSettings, partition_id: int) -> dict[str, Any]:
    """Return what a client of any method is told: who it is, what it tests on, its hardware."""
    return {
        "validation_batches": validation_batches(settings, partition_id),
        "partition_id": partition_id,
        "seed": settings.seed,
        "device": settings.simulation.device,
        "threads": settings.simulation.cpus_per_client,
    }


def state_options(settings: RunSettings, folder: Path, state: RecordDict) -> dict[str, Any]:
    """Return where a client keeps what lasts: a context's state, and a run's folder."""
    return {
        "state": state,
        "state_dir": state_folder(settings, folder),
        "checkpoint_every": settings.simulation.checkpoint_every,
    }


def state_folder(settings: RunSettings, folder: Path) -> Path | None:
    """Return where clients save what lasts: the folder that the settings name, or the run's.

    None if the run keeps no checkpoint that their states would have to go with.
    """
    group = settings.split if settings.algorithm == "adasplit" else settings.baseline
    if group.state_dir is not None:
        return Path(group.state_dir)
    return folder / STATES if settings.simulation.checkpoint_every else None
