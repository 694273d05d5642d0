"""Clients whose losses are parabolas with optima of their own, in double precision.

Client i has the loss a_i / 2 (w - b_i)^2 and takes K_i steps a round. One step of SGD brings w to
``b_i + (1 - rate a_i) (w - b_i)``, so that everything has a closed form. With equal weights of the
clients the optimum of their mean is ``sum a_i b_i / sum a_i``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.server import Server
from flwr.server.strategy import Strategy
from torch import nn

from simulations.baselines import BaselineClient, ScaffoldClient
from tests.strategies.federation import Node, managed
from zerofl_flwr.training import TrainingSettings

SAMPLES = 20


@dataclass(frozen=True)
class Parabola:
    """A client's curvature a, optimum b, and steps K a round, a divisor of 20."""

    curvature: float
    optimum: float
    steps: int


PARABOLAS = [Parabola(1.0, -1.0, 1), Parabola(2.0, 0.5, 2), Parabola(4.0, 2.0, 5)]
OPTIMUM = 8 / 7
"""(-1 + 1 + 8) / (1 + 2 + 4)."""


class Point(nn.Module):
    """A model that is one number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value], dtype=torch.float64))

    def forward(self, optima: torch.Tensor) -> torch.Tensor:
        return self.w - optima


def parabola(distance: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    """Loss of a batch."""
    return (curvature / 2 * distance**2).mean()


def batches(client: Parabola) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rows = SAMPLES // client.steps
    optimum = torch.full((rows,), client.optimum, dtype=torch.float64)
    curvature = torch.full((rows,), client.curvature, dtype=torch.float64)
    return [(optimum, curvature)] * client.steps


def client_of(
    partition: int, client: Parabola, *, scaffold: bool = False, **training: Any
) -> BaselineClient:
    options: dict[str, Any] = {
        "partition_id": partition,
        "training": TrainingSettings(**training),
        "loss_function": parabola,
    }
    if scaffold:
        return ScaffoldClient(Point(0.0), batches(client), state=RecordDict(), **options)
    return BaselineClient(Point(0.0), batches(client), **options)


def nodes(
    clients: Sequence[Parabola] = PARABOLAS, *, scaffold: bool = False, **training: Any
) -> list[Node]:
    """Let Flower's server reach the clients."""

    def node(partition: int, client: BaselineClient) -> Node:
        return Node(partition, lambda ins: client.to_client().fit(ins), cid=str(partition))

    return [
        node(partition, client_of(partition, client, scaffold=scaffold, **training))
        for partition, client in enumerate(clients)
    ]


def start(value: float = 3.0) -> Any:
    return ndarrays_to_parameters([np.array([value])])


def end_of(strategy: Strategy, clients: Sequence[Node], rounds: int) -> float:
    """Run through Flower's own server, and return the final w."""
    server = Server(client_manager=managed(clients), strategy=strategy)
    server.set_max_workers(1)
    server.fit(rounds, timeout=None)
    (array,) = parameters_to_ndarrays(server.parameters)
    return float(array[0])
