"""What an optimizer keeps goes into arrays and back, so that the next step is the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from simulations.baselines.optimizer_state import load_optimizer, optimizer_arrays
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.training import TrainingSettings, new_optimizer

SETTINGS = {
    "sgd": TrainingSettings(),
    "momentum": TrainingSettings(momentum=0.9),
    "adam": TrainingSettings(optimizer="adam", learning_rate=0.01),
}


def layer(weights: torch.Tensor | None = None) -> nn.Linear:
    made = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(0.5)
        if weights is not None:
            made.weight.copy_(weights)
    return made


def step(module: nn.Linear, optimizer: torch.optim.Optimizer, factor: float) -> None:
    optimizer.zero_grad()
    (factor * module.weight**2).sum().backward()  # type: ignore[no-untyped-call]  # none for the bias
    optimizer.step()


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("sgd", set()),
        ("momentum", {"momentum_buffer/weight"}),
        ("adam", {"exp_avg/weight", "exp_avg_sq/weight", "steps/weight"}),
    ],
)
def test_the_next_step_is_the_same(name: str, keys: set[str]) -> None:
    first = layer()
    optimizer = new_optimizer(first.parameters(), SETTINGS[name])
    for factor in (1.0, 3.0):
        step(first, optimizer, factor)
    kept = optimizer_arrays(optimizer, dict(first.named_parameters()))
    assert kept.keys() == keys  # the bias has had no gradient
    second = layer(first.weight.detach())
    other = new_optimizer(second.parameters(), SETTINGS[name])
    step(second, other, 9.0)  # what it has had is forgotten
    with torch.no_grad():
        second.weight.copy_(first.weight)
    load_optimizer(other, dict(second.named_parameters()), {**kept, "model/weight": kept_model()})
    step(first, optimizer, 2.0)
    step(second, other, 2.0)
    assert torch.equal(first.weight, second.weight)


def kept_model() -> Array:
    return layer().weight.detach().numpy()


def test_another_shape_is_refused() -> None:
    module = layer()
    optimizer = new_optimizer(module.parameters(), SETTINGS["momentum"])
    with pytest.raises(ValueError, match=r"momentum_buffer/bias has shape \(2, 3\)"):
        load_optimizer(
            optimizer, dict(module.named_parameters()), {"momentum_buffer/bias": kept_model()}
        )
