"""What the simulated clients of all methods are built from: batches, and where a state lasts.

Flower builds a client for each message, also for one that only asks who the client is: batches are
made when they are needed.
"""

from __future__ import annotations

from pathlib import Path

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


def state_folder(settings: RunSettings, folder: Path) -> Path | None:
    """Return where clients save what lasts: the folder that the settings name, or the run's.

    None if the run keeps no checkpoint that their states would have to go with.
    """
    group = settings.split if settings.algorithm == "adasplit" else settings.baseline
    if group.state_dir is not None:
        return Path(group.state_dir)
    return folder / STATES if settings.simulation.checkpoint_every else None
