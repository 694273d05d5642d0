"""A network, cut and uncut, and its clients' batches, for tests against plain torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from adasplit_flwr import ShuffledBatches, SplitModel
from adasplit_flwr.split import split_sequential
from tests.strategies.adasplit_federation import BATCH, SplitNode, client_arrays
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.training import seed_of


def network(dtype: torch.dtype) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return nn.Sequential(
            nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
        ).to(dtype)


def normalised_network(dtype: torch.dtype) -> nn.Sequential:
    """Give a network that has running statistics on both sides of a cut behind its third layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        return nn.Sequential(
            nn.Linear(6, 5),
            nn.BatchNorm1d(5),
            nn.Tanh(),
            nn.Linear(5, 4),
            nn.BatchNorm1d(4),
            nn.Linear(4, 3),
        ).to(dtype)


def cut_network(cut: int, dtype: torch.dtype) -> SplitModel:
    return split_sequential(network(dtype), cut, projection_dim=4, seed=1)


def batches_of(
    client: int, data: TensorDataset, steps: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Give the batches that a client of seed 0 takes."""
    source = ShuffledBatches(data, BATCH)
    taken: list[tuple[torch.Tensor, torch.Tensor]] = []
    for epoch in range(steps):
        taken += source.batches_from(seed_of(0, 6, epoch, client), 0)
    return taken[:steps]


def client_part_of(node: SplitNode) -> dict[str, Array]:
    """Return the client part that a node has kept, by the names of the uncut network."""
    prefix = "array/weights/client."
    return {
        name.removeprefix(prefix): array
        for name, array in client_arrays(node).items()
        if name.startswith(prefix)
    }
