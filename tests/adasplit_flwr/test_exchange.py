"""An exchange's batches and gradients, and the progress that a client notes of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from adasplit_flwr.batches import BEGINNING, BatchWalk, Position
from adasplit_flwr.exchange import (
    Progress,
    apply_gradients,
    infer,
    take_batches,
    take_none,
    to_activation_batch,
)
from adasplit_flwr.gradient_payload import encode_gradients
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.split import SplitModel
from tests.adasplit_flwr.small_clients import (
    ACTIVATION,
    PLAN,
    data_of,
    same_arrays,
    shuffled,
    small_split,
)
from zerofl_flwr.errors import ClientFailedError, DataError, PayloadError

UPLOADED = Progress(9, Position(2, 1), Position(1, 4), (4, 4, 2), (4, 4, 4))


def trainer_of(split: SplitModel | None = None) -> LocalTrainer:
    split = split or small_split()
    return LocalTrainer(split.client, split.head, seed=7, partition_id=0)


def walk_from(position: Position) -> BatchWalk:
    return BatchWalk(shuffled(0), position, seed=7, partition_id=0)


def test_progress_travels_as_arrays() -> None:
    arrays = UPLOADED.to_arrays()
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "progress/next": [2, 1],
        "progress/uploaded-from": [1, 4],
        "progress/uploaded-sizes": [4, 4, 2],
        "progress/activation-shape": [4, 4, 4],
    }
    assert all(array.dtype == np.int64 for array in arrays.values())
    assert Progress.from_arrays({**arrays, "more": np.zeros(3)}, 9) == UPLOADED
    assert Progress.from_arrays(Progress().to_arrays(), 0) == Progress()


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("next", None, "progress/next of the client's state should be counts in one int64 row"),
        ("next", np.array([1, 2, 3]), r"cannot stand at \(1, 2, 3\) after 9 batches"),
        ("next", np.array([1, -2]), "progress/next of the client's state should be counts"),
        ("uploaded-from", np.array([1]), r"3 were uploaded from \(1,\)"),
        ("uploaded-from", np.array([1.0, 2.0]), "progress/uploaded-from of"),
        ("uploaded-sizes", np.array([[4]]), "progress/uploaded-sizes of"),
        ("uploaded-sizes", np.full(10, 4), "after 9 batches, of which 10 were uploaded"),
        ("activation-shape", np.array(4), "progress/activation-shape of"),
    ],
)
def test_progress_that_cannot_be_is_refused(name: str, array: Any, message: str) -> None:
    arrays = UPLOADED.to_arrays()
    del arrays[f"progress/{name}"]
    if array is not None:
        arrays[f"progress/{name}"] = array
    with pytest.raises(DataError, match=message):
        Progress.from_arrays(arrays, 9)


def test_an_exchange_counts_batches_and_samples_and_means_over_samples() -> None:
    plan = dataclasses.replace(PLAN, iterations=8)
    outcome = take_batches(trainer_of(), walk_from(Position(0, 3)), plan, 3)
    # An epoch of 22 samples has five batches of four and one of two.
    sizes = (4, 4, 2, 4, 4, 4, 4, 4)
    assert outcome.iterations == 8
    assert outcome.samples == 30
    assert outcome.progress == Progress(11, Position(1, 5), Position(0, 3), sizes, ACTIVATION)
    assert [batch.batch_id for batch in outcome.activations] == list(range(8))
    trainer, walk = trainer_of(), walk_from(Position(0, 3))
    steps = [trainer.step(*batch, plan, 3 + n) for n, batch in enumerate(walk.take(8))]
    expected = sum(step.loss * size for step, size in zip(steps, sizes, strict=True)) / 30
    assert outcome.loss == pytest.approx(expected, rel=1e-12)
    for batch, step in zip(outcome.activations, steps, strict=True):
        assert np.array_equal(batch.activations, step.activations.numpy())
    for batch, (_, labels) in zip(
        outcome.activations, walk_from(Position(0, 3)).take(8), strict=True
    ):
        assert np.array_equal(batch.labels, labels.numpy())


def test_an_exchange_without_upload_keeps_no_activations_and_expects_no_gradients() -> None:
    plan = dataclasses.replace(PLAN, upload=False, iterations=0, local_loss=False)
    outcome = take_batches(trainer_of(), walk_from(BEGINNING), plan, 0)
    assert (outcome.activations, outcome.loss) == ([], 0.0)
    assert outcome.progress == Progress(6, Position(1, 0))
    gradients = encode_gradients([(0, np.zeros((4, *ACTIVATION), np.float32))], server_round=1)
    message = "server, field arrays: gradients came, but this client uploaded no activations"
    with pytest.raises(PayloadError, match=message):
        apply_gradients(trainer_of(), walk_from, outcome.progress, gradients, PLAN)


def test_an_end_of_exchanges_takes_nothing_and_waits_for_nothing() -> None:
    outcome = take_none(UPLOADED)
    assert outcome.progress == Progress(9, Position(2, 1))
    assert (outcome.iterations, outcome.samples, outcome.loss) == (0, 0, 0.0)
    assert outcome.activations == []


def gradients_of(sizes: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    generator = np.random.default_rng(4)
    return [generator.normal(size=(n, *ACTIVATION)).astype(np.float32) for n in sizes]


def test_gradients_are_applied_to_the_batches_that_were_uploaded_in_their_order() -> None:
    plan = dataclasses.replace(PLAN, iterations=4)
    trainer, hand = trainer_of(), trainer_of()
    start = Position(0, 4)
    progress = take_batches(trainer, walk_from(start), plan, 4).progress
    batches = list(walk_from(start).take(4))
    for number, batch in enumerate(batches):
        hand.step(*batch, plan, 4 + number)
    gradients = gradients_of([4, 2, 4, 4])
    later = dataclasses.replace(plan, server_round=9, learning_rate=0.5)
    arrays = encode_gradients(list(enumerate(gradients)), server_round=9)
    apply_gradients(trainer, walk_from, progress, arrays, later)
    for number, (inputs, _) in enumerate(batches):
        hand.apply_gradient(inputs, gradients[number], later, 4 + number)
    assert same_arrays(trainer.state(), hand.state())


@pytest.mark.parametrize(
    ("sizes", "server_round", "message"),
    [
        ([4, 4], 1, "server, layer batch-ids, field data: batch 2 is missing"),
        ([4, 4, 2, 4], 1, "server, .*bytes came, at most|batch 3 was not asked for"),
        ([4, 2, 4], 1, "batch 1: 4 samples expected, 2 came"),
        ([4, 4, 2], 2, "server, field round: round 1 expected, 2 came"),
    ],
)
def test_gradients_of_another_exchange_are_refused(
    sizes: list[int], server_round: int, message: str
) -> None:
    trainer = trainer_of()
    before = trainer.state()
    arrays = encode_gradients(list(enumerate(gradients_of(sizes))), server_round=server_round)
    with pytest.raises(PayloadError, match=message):
        apply_gradients(trainer, walk_from, UPLOADED, arrays, PLAN)
    assert same_arrays(trainer.state(), before)


def test_gradients_for_data_that_has_changed_are_refused() -> None:
    # The first batch behind (0, 5) has two samples, not four.
    progress = Progress(3, Position(1, 2), Position(0, 5), (4, 4, 4), ACTIVATION)
    arrays = encode_gradients(list(enumerate(gradients_of([4, 4, 4]))), server_round=1)
    with pytest.raises(PayloadError, match=r"field shape: \(2, 4, 4, 4\) expected, \(4, 4, 4, 4\)"):
        apply_gradients(trainer_of(), walk_from, progress, arrays, PLAN)


def test_test_activations_are_those_of_evaluation_mode_batch_by_batch() -> None:
    split = small_split().train()
    before = {name: b.clone() for name, b in split.named_buffers()}
    data = data_of(0, 7)
    batches = infer(split.client, DataLoader(data, batch_size=4), device="cpu")
    split.eval()
    assert [batch.batch_id for batch in batches] == [0, 1]
    for batch, part in zip(batches, (slice(0, 4), slice(4, 7)), strict=True):
        inputs, labels = data[part]
        assert np.array_equal(batch.activations, split.client(inputs).detach().numpy())
        assert np.array_equal(batch.labels, labels.numpy())
    assert all(torch.equal(b, before[name]) for name, b in split.named_buffers())
    with pytest.raises(ClientFailedError, match="no data to evaluate on: the loader gave no batch"):
        infer(split.client, [], device="cpu")


def test_batches_travel_in_float32_and_int64() -> None:
    activations = torch.tensor([[1 / 3, math.pi]], dtype=torch.float64)
    batch = to_activation_batch(5, activations, torch.tensor([2], dtype=torch.uint8))
    assert batch.batch_id == 5
    assert batch.activations.dtype == np.float32
    assert batch.activations.tolist() == [[float(np.float32(1 / 3)), float(np.float32(math.pi))]]
    assert (batch.labels.dtype, batch.labels.tolist()) == (np.dtype("int64"), [2])
    real = to_activation_batch(5, activations, torch.tensor([2.5]))
    assert real.labels.tolist() == [2.5]  # refused by the payload, not rounded


def test_a_network_without_layers_at_the_client_uploads_its_samples() -> None:
    split = SplitModel(nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), nn.Flatten())
    plan = dataclasses.replace(PLAN, iterations=1)
    outcome = take_batches(trainer_of(split), walk_from(BEGINNING), plan, 0)
    [(inputs, _)] = walk_from(BEGINNING).take(1)
    assert np.array_equal(outcome.activations[0].activations, inputs.numpy())
