"""A small network and batches for the baselines' clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from strategies.client_rounds import StatePlan
from zerofl_flwr.model_arrays import Array, get_arrays
from zerofl_flwr.training import Batches

SAMPLES = 24


def network(*, normed: bool = False) -> nn.Module:
    """Build a network whose weights are always the same; with BatchNorm and dropout on request."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        middle = [nn.BatchNorm1d(8), nn.Dropout(0.3)] if normed else []
        return nn.Sequential(nn.Linear(4, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


def loader(partition: int = 0, *, shuffle: bool = True) -> Batches:
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    labels = torch.randint(3, (SAMPLES,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=shuffle)


def arrays(**options: Any) -> list[Array]:
    return get_arrays(network(**options))


def zeros_like(model: list[Array]) -> list[Array]:
    """Return control variates of zero for a model's float arrays."""
    return [np.zeros_like(array) for array in model if np.issubdtype(array.dtype, np.floating)]


def config(server_round: int, state_round: int = 0) -> dict[str, Any]:
    """Write what a strategy tells a client that keeps a state."""
    return {**StatePlan("run", server_round, state_round).to_config()}
