"""What clients of one whole model share, on a linear layer worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.common import Scalar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from zerofl_flwr.errors import ClientFailedError, SettingsError
from zerofl_flwr.model_arrays import get_arrays
from zerofl_flwr.model_client import ModelClient, training_metrics
from zerofl_flwr.training import TrainingOutcome, TrainingSettings

# Weights [4, -3], and the loss is the output, so that the gradient is the input [1, 2]: with a rate
# of 0.5 a step makes them [3.5, -4].
BATCH = (torch.tensor([[1.0, 2.0]]), torch.tensor([0]))


def one_layer(**options: Any) -> ModelClient:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, -3.0]]))
    given = {
        "train_batches": [BATCH],
        "partition_id": 5,
        "training": TrainingSettings(learning_rate=0.5),
        "loss_function": lambda outputs, labels: outputs.sum(),
        **options,
    }
    return ModelClient(model, **given)


def weights(client: ModelClient) -> list[float]:
    return [float(value) for value in get_arrays(client.model)[0].ravel()]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [3.5, -4]),
        ({"learning-rate": 0.25}, [3.75, -3.5]),
        ({"learning-rate": 0.25, "local-epochs": 2}, [3.5, -4]),
        # FedProx adds 2 (w - w_0) = 2 * [-0.25, -0.5] to the second gradient.
        ({"learning-rate": 0.25, "local-epochs": 2, "proximal_mu": 2.0}, [3.625, -3.75]),
    ],
)
def test_a_rounds_config_counts(config: dict[str, Scalar], expected: list[float]) -> None:
    client = one_layer()
    outcome = client.train(config, 1)
    assert weights(client) == expected
    assert outcome.steps == config.get("local-epochs", 1)


def test_an_optimizer_is_new_in_each_round() -> None:
    client = one_layer(training=TrainingSettings(learning_rate=0.5, momentum=0.9))
    client.train({}, 1)
    client.train({}, 2)
    assert weights(client) == [3, -5]  # with what is left of the first, it would be [2.55, ...]


def test_gradients_may_be_corrected() -> None:
    client = one_layer()
    assert isinstance(client.model, nn.Linear)
    weight = client.model.weight

    def double() -> None:
        assert weight.grad is not None
        weight.grad.mul_(2)

    client.train({}, 1, correct=double)
    assert weights(client) == [3, -5]


def shuffled(server_round: int | None = 1, **options: Any) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(12, 2, generator=generator), torch.zeros(12))
    client = one_layer(
        train_batches=DataLoader(data, 2, shuffle=True),
        loss_function=lambda outputs, labels: outputs.square().mean(),
        **options,
    )
    client.train({}, server_round)
    return weights(client)


def test_shuffles_depend_on_seed_round_and_partition_and_on_nothing_else() -> None:
    torch.manual_seed(3)
    first = shuffled()
    torch.manual_seed(4)
    assert shuffled() == first
    others = [shuffled(2), shuffled(seed=1), shuffled(partition_id=6), shuffled(None)]
    assert len({tuple(order) for order in [first, *others]}) == 5


def test_without_a_round_shuffles_do_not_repeat() -> None:
    assert shuffled(None) != shuffled(None)


def test_the_model_is_tested_as_it_stands() -> None:
    inputs, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 2.0]]), torch.tensor([0, 1, 1])
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    client = ModelClient(model, [], [(inputs, labels)], partition_id=0)
    loss, count, metrics = client.test()
    # Each is ahead by 1 for one class: twice for the right one, once for the wrong one.
    right, wrong = 0.31326169, 1.31326169
    assert loss == pytest.approx((2 * right + wrong) / 3)
    assert (count, metrics) == (3, {"accuracy": 2 / 3})


def test_it_tells_who_it_is_and_its_model() -> None:
    assert one_layer().get_properties({}) == {"partition-id": 5}
    assert [array.tolist() for array in one_layer().get_parameters({})] == [[[4, -3]]]


def test_no_data_is_an_error() -> None:
    with pytest.raises(ClientFailedError, match="no training data"):
        one_layer(train_batches=[]).train({}, 1)
    with pytest.raises(SettingsError, match="no validation data to evaluate on"):
        one_layer().test()
    with pytest.raises(ClientFailedError, match="no data to evaluate on"):
        one_layer(validation_batches=[]).test()


def test_training_that_diverges_is_the_clients_failure() -> None:
    client = one_layer(loss_function=lambda outputs, labels: outputs.square().sum())
    with pytest.raises(ClientFailedError, match="training diverged at learning rate 1e\\+30"):
        client.train({"learning-rate": 1e30, "local-epochs": 3}, 1)


def test_threads_are_limited_when_the_client_is_built() -> None:
    before = torch.get_num_threads()
    try:
        one_layer(threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(SettingsError, match="at least 1 thread"):
        one_layer(threads=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match="device 'cuda' was asked for, but torch finds no CUDA"):
        one_layer(device="cuda")


def test_a_replys_figures_are_those_of_the_training() -> None:
    told = training_metrics(TrainingOutcome(loss=0.5, num_examples=10, steps=3, seconds=2.0))
    assert {**told, "client_memory_mb": 0} == {
        "train_loss": 0.5,
        "train_seconds": 2.0,
        "client_memory_mb": 0,
    }
    assert float(told["client_memory_mb"]) > 1
