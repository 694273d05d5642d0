"""A training step of LeNet: ours against torch's local response norm and plain Adam."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from torch import nn

from simulations.commands import command
from simulations.local_response_norm import LocalResponseNorm
from simulations.networks import lenet
from zerofl_flwr.threads import limit_threads
from zerofl_flwr.training import TrainingSettings, new_optimizer

CLASSES = 10

Step = Callable[[], object]


def training_step(batch_size: int, *, ours: bool) -> Step:
    """Build a step of the whole network on one batch, as a client trains it, or as torch has it."""
    model = lenet(CLASSES)
    if not ours:
        for name, module in list(model.named_modules()):
            if isinstance(module, LocalResponseNorm):
                plain = nn.LocalResponseNorm(module.size, module.alpha, module.beta, module.k)
                model.set_submodule(name, plain)
    settings = TrainingSettings(optimizer="adam", learning_rate=1e-3)
    adam = (
        new_optimizer(model.parameters(), settings)
        if ours
        else torch.optim.Adam(model.parameters(), lr=1e-3)
    )
    inputs, labels = torch.rand(batch_size, 3, 32, 32), torch.randint(0, CLASSES, (batch_size,))

    def step() -> None:
        adam.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        loss.item()  # a client wants to know it

    return step


def seconds(step: Step, steps: int) -> float:
    """Time so many steps; seconds of one."""
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - started) / steps


def main(
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each kind in a repeat.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Turns through both kinds.")] = 9,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
) -> None:
    """Time LeNet's training step both ways in turn, and print the median ratio of a turn."""
    limit_threads(threads)
    torch.manual_seed(0)
    kinds = {
        "torch": training_step(batch_size, ours=False),
        "ours": training_step(batch_size, ours=True),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for step in kinds.values():  # memory is taken before the clock runs
        seconds(step, 2)
    for _ in range(repeats):
        for name, step in kinds.items():
            times[name].append(seconds(step, steps))
    for name, measured in times.items():
        print(f"{name:6} {1000 * statistics.median(measured):7.1f} ms a step")
    ratios = [a / b for a, b in zip(times["torch"], times["ours"], strict=True)]
    print(f"ours is {statistics.median(ratios):.2f} times as fast")


if __name__ == "__main__":
    command(main)()
