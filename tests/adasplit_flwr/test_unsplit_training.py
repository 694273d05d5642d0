"""With the server's gradient, without masks, one client: split training is that of one network."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from adasplit_flwr.activation_payload import decode_activations, encode_activations
from adasplit_flwr.exchange import to_activation_batch
from adasplit_flwr.gradient_payload import decode_gradients, encode_gradients
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.masked_adam import AdamSettings
from adasplit_flwr.masked_server import MaskedServer
from adasplit_flwr.split import SplitModel, split_sequential
from tests.adasplit_flwr.small_clients import CLASSES, PLAN, SHAPE, Batch
from zerofl_flwr.training import seed_of

STEPS, SEED, WHO = 20, 7, 0
RATE, DECAY = 0.01, 0.001
PLAN_OF_STEP = dataclasses.replace(
    PLAN, local_loss=False, learning_rate=RATE, weight_decay=DECAY, activation_penalty=0.0
)
ADAM = AdamSettings(learning_rate=RATE, weight_decay=DECAY)


def network(dtype: torch.dtype) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 3, 3, bias=False),
            nn.BatchNorm2d(3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(12, 8),
            nn.ReLU(),
            nn.Linear(8, CLASSES),
        ).to(dtype)


def batches(dtype: torch.dtype) -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(6, *SHAPE, generator=generator, dtype=dtype),
            torch.randint(CLASSES, (6,), generator=generator),
        )
        for _ in range(STEPS)
    ]


def unsplit(net: nn.Sequential, dtype: torch.dtype) -> nn.Sequential:
    net = copy.deepcopy(net).train()
    adam = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=DECAY)
    for iteration, (inputs, labels) in enumerate(batches(dtype)):
        torch.manual_seed(seed_of(SEED, 7, iteration, WHO))
        loss = nn.functional.cross_entropy(net(inputs), labels)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return net


def split_trained(
    split: SplitModel, dtype: torch.dtype, *, over_the_wire: bool
) -> dict[str, torch.Tensor]:
    """Train both parts, each exchange one batch, and return the whole network's state."""
    trainer = LocalTrainer(split.client, split.head, seed=SEED, partition_id=WHO)
    server = MaskedServer(split.server, None, masks="none", optimizer=ADAM)
    for iteration, (inputs, labels) in enumerate(batches(dtype)):
        activations = trainer.step(inputs, labels, PLAN_OF_STEP, iteration).activations
        if over_the_wire:
            activations, labels = sent_up(activations, labels)
        outcome = server.train_batch(WHO, activations, labels, input_gradient=True)
        assert outcome.gradient is not None
        gradient = outcome.gradient.numpy()
        if over_the_wire:
            arrays = encode_gradients([(0, gradient)], server_round=iteration + 2)
            [(_, gradient)] = decode_gradients(
                arrays,
                server_round=iteration + 2,
                activation_shape=gradient.shape[1:],
                batch_ids=[0],
                batch_sizes=[len(labels)],
            )
        trainer.apply_gradient(inputs, gradient, PLAN_OF_STEP, iteration)
    return {**split.client.state_dict(), **server.submodel(WHO)}


def sent_up(activations: torch.Tensor, labels: torch.Tensor) -> Batch:
    batch = to_activation_batch(0, activations, labels)
    [came] = decode_activations(
        encode_activations([batch], server_round=1, num_classes=CLASSES),
        sender="client 0",
        server_round=1,
        activation_shape=tuple(activations.shape[1:]),
        num_classes=CLASSES,
        batch_ids=[0],
        max_batch_size=6,
    )
    return torch.tensor(came.activations), torch.tensor(came.labels)


@pytest.mark.parametrize("cut", range(1, 10))
def test_every_weight_follows_the_training_of_the_unsplit_network(cut: int) -> None:
    net = network(torch.float64)
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    expected = unsplit(net, torch.float64).state_dict()
    split = split_sequential(net, cut, sample_shape=SHAPE)
    trained = split_trained(split, torch.float64, over_the_wire=False)
    assert list(trained) == list(expected)
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-10)
        assert not torch.equal(tensor, start[name]), name


@pytest.mark.parametrize("cut", [1, 3, 6, 7, 9])
def test_the_payloads_change_no_bit_of_it(cut: int) -> None:
    states = [
        split_trained(
            split_sequential(network(torch.float32), cut, sample_shape=SHAPE),
            torch.float32,
            over_the_wire=over_the_wire,
        )
        for over_the_wire in (False, True)
    ]
    assert len(states[0]) == 17
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    # What parts it from the unsplit one is the rounding of float32.
    expected = unsplit(network(torch.float32), torch.float32).state_dict()
    largest = max(
        float((tensor.double() - expected[name].double()).abs().max())
        for name, tensor in states[1].items()
    )
    assert largest < 1e-4
