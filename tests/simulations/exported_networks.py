"""Exported networks in plain torch, and what the tables of their runs say of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from simulations.models import build_model
from tests.simulations.small_runs import table_of
from zerofl_flwr.model_arrays import Array


@torch.no_grad()
def figures_of(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """Test a network in plain torch; returns accuracy and mean loss."""
    model.eval()
    inputs, labels = data.tensors
    loss, right = 0.0, 0
    for start in range(0, len(labels), 256):
        part = slice(start, start + 256)
        logits = model(inputs[part])
        loss += nn.functional.cross_entropy(logits, labels[part]).item() * len(labels[part])
        right += int((logits.argmax(dim=1) == labels[part]).sum())
    return right / len(labels), loss / len(labels)


def loaded(model: nn.Module, exported: Path | Mapping[str, Array]) -> nn.Module:
    """Load an exported file, or its arrays, into a plain model."""
    if isinstance(exported, Path):
        state = torch.load(exported, weights_only=True)
    else:
        state = {name: torch.tensor(array) for name, array in exported.items()}
    model.load_state_dict(state)
    return model


def digits_cnn() -> nn.Module:
    return build_model("digits_cnn", 10, (1, 8, 8), seed=99)


def rows_of(folder: Path, server_round: int) -> dict[int, tuple[float, float]]:
    """Return what a run's table says of each client's test after a round: accuracy and loss."""
    table = table_of(folder, "tests").query(f"round == '{server_round}'")
    columns = (table[name] for name in ("partition_id", "accuracy", "loss"))
    return {int(row[0]): (float(row[1]), float(row[2])) for row in zip(*columns, strict=True)}
