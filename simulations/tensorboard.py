"""A run's rounds as TensorBoard scalars."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerofl_flwr.errors import SettingsError


def check_tensorboard() -> None:
    """Refuse to go on without the optional package.

    Raises
    ------
    SettingsError
        Naming the extra to install.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise SettingsError(
            "tensorboard is on, but the package is missing: pip install 'lean-flwr[tensorboard]'"
        )


def write_scalars(folder: Path, row: Mapping[str, Any]) -> None:
    """Add one round's figures, one event file a round, so that a killed run loses none.

    Parameters
    ----------
    folder : Path
        TensorBoard's log folder of this run.
    row : mapping
        A row of ``rounds.csv``; NaN, texts and the round itself are left out.
    """
    from torch.utils.tensorboard import SummaryWriter  # takes a second to import

    server_round = int(row["round"])
    suffix = f".round-{server_round:06d}"
    for old in folder.glob(f"*{suffix}"):
        old.unlink()  # the round of a run that was stopped before its checkpoint
    with SummaryWriter(str(folder), filename_suffix=suffix) as writer:
        for name, value in row.items():
            if name != "round" and not isinstance(value, str) and math.isfinite(value):
                writer.add_scalar(name, value, server_round)
