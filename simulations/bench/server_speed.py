"""Samples a second of AdaSplit's masked server: soft, hard and no masks against plain torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from torch import nn

from adasplit_flwr.masked_server import MaskedServer
from adasplit_flwr.server_masks import MASKS
from simulations.commands import command
from simulations.networks import lenet
from zerofl_flwr.threads import limit_threads

SAMPLE_SHAPE = (20, 16, 16)
CLASSES = 10
LEAST_SOFT_RATIO = 0.6

Train = Callable[[int], object]
"""Trains on one batch of the client with this number."""


def lenet_server() -> nn.Module:
    """Build LeNet's server part at cut 1: (n, 20, 16, 16) to (n, 10), 2,991,360 parameters."""
    return lenet(CLASSES)[1:]


def plain_trainer(batch: tuple[torch.Tensor, torch.Tensor], *, fused: bool) -> Train:
    """Train the module by itself, with torch.optim.Adam."""
    model = lenet_server()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5, fused=fused)
    inputs, labels = batch

    def train(_client: int) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()  # a trainer wants to know it

    return train


def masked_trainer(batch: tuple[torch.Tensor, torch.Tensor], masks: str) -> Train:
    """Train it as AdaSplit's server does."""
    server = MaskedServer(lenet_server(), None, masks=masks)

    def train(client: int) -> None:
        server.train_batch(client, *batch)

    return train


def samples_per_second(train: Train, batches: int, batch_size: int, clients: int) -> float:
    """Time so many batches, the clients taking turns."""
    started = time.perf_counter()
    for number in range(batches):
        train(number % clients)
    return batches * batch_size / (time.perf_counter() - started)


def main(
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    batches: Annotated[int, typer.Option(min=1, help="Batches of each kind in a repeat.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Turns through all kinds.")] = 7,
    clients: Annotated[int, typer.Option(min=1, help="Clients that take turns.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
) -> None:
    """Train LeNet's server part at cut 1 and print samples a second, and ratios to plain torch.

    A ratio compares two measurements of the same turn, and the median over the turns is printed,
    so that other work on the machine weighs little.
    """
    limit_threads(threads)
    torch.manual_seed(0)
    batch = torch.rand(batch_size, *SAMPLE_SHAPE), torch.randint(0, CLASSES, (batch_size,))
    trainers = {
        "plain torch": plain_trainer(batch, fused=False),
        "plain torch, fused Adam": plain_trainer(batch, fused=True),
    } | {f"masks {masks}": masked_trainer(batch, masks) for masks in MASKS}
    for train in trainers.values():  # masks are made, and memory is taken, before the clock runs
        samples_per_second(train, clients, batch_size, clients)
    speeds: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(repeats):
        for name, train in trainers.items():
            speeds[name].append(samples_per_second(train, batches, batch_size, clients))
    for name, measured in speeds.items():
        text = f"{name:24} {statistics.median(measured):8.1f} samples a second"
        for reference in ("plain torch", "plain torch, fused Adam"):
            ratios = [a / b for a, b in zip(measured, speeds[reference], strict=True)]
            text += f", {statistics.median(ratios):.3f} of {reference}"
        print(text)
    soft = [a / b for a, b in zip(speeds["masks soft"], speeds["plain torch"], strict=True)]
    verdict = "met" if statistics.median(soft) >= LEAST_SOFT_RATIO else "NOT met"
    print(f"soft masks at least {LEAST_SOFT_RATIO} of plain torch: {verdict}")


if __name__ == "__main__":
    command(main)()
