"""AdaSplit's client over several rounds against plain torch, however the batches are parted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch.utils.data import DataLoader

from adasplit_flwr.activation_payload import ActivationBatch
from adasplit_flwr.batches import Seekable
from adasplit_flwr.contrastive import nt_xent
from adasplit_flwr.gradient_payload import encode_gradients
from adasplit_flwr.plans import ExchangePlan
from adasplit_flwr.split import SplitModel
from adasplit_flwr.weights_payload import decode_weights, named_arrays, named_specs
from tests.adasplit_flwr.small_clients import (
    ACTIVATION,
    BATCH,
    PLAN,
    SAMPLES,
    Batch,
    activations_in,
    client_of,
    data_of,
    fit,
    loader,
    same_arrays,
    shuffled,
    small_split,
    start_weights,
    state_in,
)
from zerofl_flwr.training import Batches, seed_of

SEED, WHO = 7, 3
EPOCH = [4, 4, 4, 4, 4, 2]
COUNTER = "client.1.num_batches_tracked"


def shuffled_by_hand() -> Iterator[Batch]:
    for epoch in range(9):
        generator = torch.Generator().manual_seed(seed_of(SEED, 6, epoch, WHO))
        order = torch.randperm(SAMPLES, generator=generator)
        inputs, labels = data_of(WHO).tensors
        for start in range(0, SAMPLES, BATCH):
            index = order[start : start + BATCH]
            yield inputs[index], labels[index]


def loaded_by_hand() -> Iterator[Batch]:
    for epoch in range(9):
        torch.manual_seed(seed_of(SEED, 6, epoch, WHO))
        batches = list(DataLoader(data_of(WHO), batch_size=BATCH, shuffle=True))
        yield from ((inputs, labels) for inputs, labels in batches)


SOURCES: dict[str, tuple[Batches | Seekable, Any]] = {
    "ShuffledBatches": (shuffled(WHO), shuffled_by_hand),
    "DataLoader": (loader(WHO), loaded_by_hand),
}


class ByHand:
    """What a client should do, written out."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.split = small_split().train()
        self.batches = batches
        self.iteration = 0
        self.last: list[tuple[int, torch.Tensor]] = []
        self.adam = torch.optim.Adam(
            [*self.split.client.parameters(), *self.split.head.parameters()],
            lr=PLAN.learning_rate,
            weight_decay=PLAN.weight_decay,
        )

    def take(self, count: int) -> tuple[list[torch.Tensor], float]:
        """Return activations and mean loss of so many batches."""
        activations, losses, self.last = [], 0.0, []
        for _ in range(count):
            inputs, labels = next(self.batches)
            torch.manual_seed(seed_of(SEED, 7, self.iteration, WHO))
            output = self.split.client(inputs)
            loss = nt_xent(self.split.head(output), labels, PLAN.temperature)
            self.adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if loss > 0:  # the last batch of an epoch has two samples, seldom of one class
                self.adam.step()
            activations.append(output.detach())
            losses += float(loss.detach()) * len(labels)
            self.last.append((self.iteration, inputs))
            self.iteration += 1
        return activations, losses / sum(len(a) for a in activations)

    def apply(self, gradients: list[np.ndarray[Any, Any]]) -> None:
        for (iteration, inputs), gradient in zip(self.last, gradients, strict=True):
            buffers = {name: b.clone() for name, b in self.split.client.named_buffers()}
            torch.manual_seed(seed_of(SEED, 7, iteration, WHO))
            self.adam.zero_grad()
            self.split.client(inputs).backward(torch.tensor(gradient))
            self.adam.step()
            self.split.client.load_state_dict(buffers, strict=False)

    def weights(self) -> dict[str, Any]:
        return weights_of(self.split)


def weights_of(split: SplitModel) -> dict[str, Any]:
    return named_arrays({"client": split.client, "head": split.head})


NO_PENALTY = dataclasses.replace(PLAN, activation_penalty=0.0)


def random_gradients(batches: Sequence[ActivationBatch]) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(len(batches))
    sizes = [batch.activations.shape for batch in batches]
    return [generator.normal(size=size).astype(np.float32) for size in sizes]


def plan_of(server_round: int, state_round: int, **changes: Any) -> ExchangePlan:
    return dataclasses.replace(
        NO_PENALTY, server_round=server_round, state_round=state_round, **changes
    )


def uploaded_weights(reply: Any, server_round: int) -> dict[str, Any]:
    arrays, _, metrics = reply
    split = small_split()
    specs = named_specs({"client": split.client, "head": split.head})
    start = metrics["activation_arrays"]
    return decode_weights(arrays[start:], specs, server_round=server_round, sender="client 3")


@pytest.mark.parametrize("name", SOURCES)
def test_rounds_of_several_kinds_are_those_of_plain_torch(name: str) -> None:
    source, by_hand = SOURCES[name]
    hand, state, shared = ByHand(by_hand()), RecordDict(), small_split(99)

    def send(plan: ExchangePlan, **payloads: Any) -> Any:
        # Another client trains on the same model object in between.
        other = client_of(8, RecordDict(), split=shared)
        fit(other, plan_of(1, 0), start_weights(small_split(5)))
        client = client_of(WHO, state, split=shared, train_batches=source)
        return fit(client, plan, **payloads)

    # Round 1 is the first, of the local phase; the client is not asked again before round 3.
    reply = send(plan_of(1, 0, upload=False), weights=start_weights())
    _, loss = hand.take(2)
    assert reply[1] == 8
    measured = {"train_seconds", "client_memory_mb"}
    assert {k: v for k, v in reply[2].items() if k not in measured} == {
        "train_loss": loss,
        "iterations": 2,
        "activation_arrays": 0,
        "round": 1,
    }
    assert all(float(reply[2][name]) > 0 for name in measured)
    weights = hand.weights()
    del weights[COUNTER]
    assert same_arrays(uploaded_weights(reply, 1), weights)

    # Round 3 uploads seven batches, which go into the second epoch.
    reply = send(plan_of(3, 1, iterations=7, upload_weights=False))
    activations, loss = hand.take(7)
    assert reply[1] == 4 + 4 + 4 + 2 + 4 + 4 + 4
    assert reply[2]["train_loss"] == loss
    assert reply[2]["activation_arrays"] == len(reply[0])
    came = activations_in(reply, [4, 4, 4, 2, 4, 4, 4])
    for batch, expected in zip(came, activations, strict=True):
        assert np.array_equal(batch.activations, expected.numpy())

    # Round 4 brings the gradients of those, and takes the rest of the epoch.
    gradients = random_gradients(came)
    hand.apply(gradients)
    arrays = encode_gradients(list(enumerate(gradients)), server_round=4)
    reply = send(plan_of(4, 3, iterations=0), gradients=arrays)
    activations, _ = hand.take(3)
    came = activations_in(reply, EPOCH[3:])
    for batch, expected in zip(came, activations, strict=True):
        assert np.array_equal(batch.activations, expected.numpy())

    # Round 5 brings other weights, and takes a whole epoch.
    hand.split.client.load_state_dict(
        {**small_split(5).client.state_dict(), COUNTER[7:]: torch.tensor(12)}
    )
    hand.split.head.load_state_dict(small_split(5).head.state_dict())
    reply = send(plan_of(5, 4, iterations=0), weights=start_weights(small_split(5), 5))
    activations, loss = hand.take(6)
    assert (reply[1], reply[2]["iterations"], reply[2]["train_loss"]) == (SAMPLES, 6, loss)

    # Round 6 brings the gradients of those, and nothing is taken.
    gradients = random_gradients(activations_in(reply, EPOCH))
    hand.apply(gradients)
    arrays = encode_gradients(list(enumerate(gradients)), server_round=6)
    reply = send(plan_of(6, 5, finish=True, iterations=0, upload=False), gradients=arrays)
    assert (reply[1], reply[2]["iterations"], reply[2]["train_loss"]) == (0, 0, 0.0)
    assert reply[2]["activation_arrays"] == 0
    weights = hand.weights()
    del weights[COUNTER]
    assert same_arrays(uploaded_weights(reply, 6), weights)
    kept = state_in(state)
    assert (kept.server_round, kept.iterations, kept.run, kept.partition_id) == (6, 18, "a-run", 3)
    for key, array in hand.weights().items():
        assert np.array_equal(kept.arrays[f"weights/{key}"], array), key
    for key, parameter in hand.split.client.named_parameters():
        moment = hand.adam.state[parameter]["exp_avg_sq"].numpy()
        assert np.array_equal(kept.arrays[f"exp_avg_sq/client.{key}"], moment), key


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("count", [3, 8])
def test_one_exchange_of_many_batches_is_as_many_exchanges_of_one(name: str, count: int) -> None:
    source = SOURCES[name][0]
    plan = dataclasses.replace(PLAN, activation_penalty=0.01)
    states, uploads = [], []
    for parts in ([count], [1] * count):
        state, uploaded = RecordDict(), []
        for server_round, iterations in enumerate(parts, start=1):
            client = client_of(WHO, state, train_batches=source)
            now = dataclasses.replace(
                plan,
                server_round=server_round,
                state_round=server_round - 1,
                iterations=iterations,
            )
            reply = fit(client, now, start_weights() if server_round == 1 else ())
            sizes = [4] if iterations == 1 else (EPOCH * 2)[:count]
            uploaded += [b.activations for b in activations_in(reply, sizes)]
        kept = state_in(state)
        assert kept.iterations == count
        states.append(dict(kept.arrays))
        uploads.append(uploaded)
    assert same_arrays(*uploads)
    uploaded_names = [key for key in states[0] if key.startswith("progress/uploaded")]
    assert len(uploaded_names) == 2
    for arrays in states:
        for key in uploaded_names:
            del arrays[key]
    assert same_arrays(*states)


def test_whole_epochs_and_as_many_batches_are_the_same_training() -> None:
    states = []
    for iterations in (0, len(EPOCH)):
        state = RecordDict()
        for server_round in (1, 2, 3):
            plan = plan_of(server_round, server_round - 1, iterations=iterations)
            weights = start_weights() if server_round == 1 else ()
            reply = fit(client_of(WHO, state), plan, weights)
            assert reply[1] == SAMPLES
        arrays = state_in(state).arrays
        states.append({k: a for k, a in arrays.items() if not k.startswith("progress/")})
    assert same_arrays(*states)


def test_without_a_local_loss_weights_change_only_by_gradients() -> None:
    state = RecordDict()
    plan = plan_of(1, 0, local_loss=False, iterations=1)
    reply = fit(client_of(WHO, state), plan, start_weights())
    assert reply[2]["train_loss"] == 0.0
    started = weights_of(small_split())
    trained = [n for n, _ in small_split().client.named_parameters()]
    before = state_in(state).arrays
    for name in trained:
        assert np.array_equal(before[f"weights/client.{name}"], started[f"client.{name}"])
    gradient = np.ones((4, *ACTIVATION), np.float32)
    plan = plan_of(2, 1, local_loss=False, iterations=1)
    gradients = encode_gradients([(0, gradient)], server_round=2)
    fit(client_of(WHO, state), plan, gradients=gradients)
    after = state_in(state).arrays
    for name in trained:
        assert not np.array_equal(after[f"weights/client.{name}"], started[f"client.{name}"])
        assert after[f"steps/client.{name}"] == 1
    assert not any(name.startswith("steps/head") for name in after)
    assert np.array_equal(after["weights/head.hidden.weight"], started["head.hidden.weight"])
