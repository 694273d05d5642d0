"""Local training with Adam, with an optimizer that goes on, and with corrected gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.zerofl_flwr.one_layer import line, squared
from zerofl_flwr.training import TrainingOutcome, TrainingSettings, new_optimizer, train_locally

BATCHES = [(torch.tensor([[1.0, 1.0]]), torch.tensor([0.0]))] * 2


def train(model: nn.Module, *, epochs: int = 1, **options: object) -> TrainingOutcome:
    settings = options.pop("settings", TrainingSettings(local_epochs=epochs))
    return train_locally(model, BATCHES, settings, seed=0, loss_function=squared, **options)  # type: ignore[arg-type]


def test_adam_takes_steps_of_its_learning_rate_whatever_the_gradients_size() -> None:
    model = line([1.0, 2.0])
    train(model, settings=TrainingSettings(optimizer="adam", learning_rate=0.01))
    # As both gradients are positive and nearly equal, both steps are 0.01 long.
    assert model.weight.tolist()[0] == pytest.approx([0.98, 1.98], abs=1e-4)


def test_adam_is_torchs_with_its_weight_decay() -> None:
    settings = TrainingSettings(optimizer="adam", learning_rate=0.3, weight_decay=0.5)
    model, other = line([1.0, 2.0]), line([1.0, 2.0])
    train(model, settings=settings)
    adam = torch.optim.Adam(other.parameters(), lr=0.3, weight_decay=0.5)
    for inputs, labels in BATCHES:
        adam.zero_grad()
        squared(other(inputs), labels).backward()  # type: ignore[no-untyped-call]
        adam.step()
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_optimizer_of_the_settings_is_made_with_their_values(name: str) -> None:
    momentum = 0.5 if name == "sgd" else 0.0
    settings = TrainingSettings(
        optimizer=name, learning_rate=0.25, weight_decay=0.125, momentum=momentum
    )
    optimizer = new_optimizer(line([1.0, 2.0]).parameters(), settings)
    assert type(optimizer) is {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.125)
    assert group.get("momentum", 0.0) == momentum


def test_each_call_starts_anew_unless_an_optimizer_is_given() -> None:
    settings = TrainingSettings(optimizer="adam", learning_rate=0.01)
    whole, halves, anew = line([1.0, 2.0]), line([1.0, 2.0]), line([1.0, 2.0])
    train(whole, settings=TrainingSettings(optimizer="adam", learning_rate=0.01, local_epochs=2))
    optimizer = new_optimizer(halves.parameters(), settings)
    for _ in range(2):
        train(halves, settings=settings, optimizer=optimizer)
        train(anew, settings=settings)
    assert torch.equal(halves.weight, whole.weight)
    assert not torch.equal(anew.weight, whole.weight)


def test_batches_are_counted_as_steps() -> None:
    assert train(line([1.0, 2.0])).steps == 2
    outcome = train(line([1.0, 2.0]), epochs=3)
    assert (outcome.steps, outcome.num_examples) == (6, 2)


def test_gradients_may_be_changed_before_each_step() -> None:
    model, seen = line([1.0, 2.0]), []

    def correct() -> None:
        gradient = model.weight.grad
        assert gradient is not None
        seen.append(gradient.tolist()[0])
        gradient.copy_(torch.tensor([[1.0, -1.0]]))

    train(model, correct=correct)
    # The first output is 3, with a gradient of 6 for both; steps of 0.1 against [1, -1] keep it.
    assert seen == [pytest.approx([6.0, 6.0]), pytest.approx([6.0, 6.0])]
    assert model.weight.tolist()[0] == pytest.approx([0.8, 2.2])
