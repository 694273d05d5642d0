"""Batches from whose labels nothing can be learned: weight decay alone must not train on them."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.weights_payload import named_arrays
from tests.adasplit_flwr.small_clients import PLAN, Batch, data_of, small_split

BATCHES: list[Batch] = [data_of(3, 15)[start : start + 5] for start in (0, 5, 10)]
ONE_CLASS = [(inputs, torch.zeros_like(labels)) for inputs, labels in BATCHES]


def test_batches_of_a_single_class_leave_the_weights_alone() -> None:
    plan = dataclasses.replace(PLAN, activation_penalty=0.0, weight_decay=0.5)
    split = small_split()
    trainer = LocalTrainer(split.client, split.head, seed=7, partition_id=3)
    before = {name: p.detach().clone() for name, p in split.named_parameters()}
    for iteration, (inputs, labels) in enumerate(ONE_CLASS):
        assert trainer.step(inputs, labels, plan, iteration).loss == 0.0
    assert all(torch.equal(p, before[name]) for name, p in split.named_parameters())
    assert not any(name.startswith("steps/") for name in trainer.state())
    # Nor does Adam go on with the moments of batches that taught something.
    trainer.step(*BATCHES[0], plan, 3)
    trained = {name: p.detach().clone() for name, p in split.named_parameters()}
    trainer.step(*ONE_CLASS[0], plan, 4)
    assert all(torch.equal(p, trained[name]) for name, p in split.named_parameters())
    assert trainer.state()["steps/client.0.weight"] == 1


def test_with_a_penalty_alone_the_head_stays() -> None:
    split = small_split()
    trainer = LocalTrainer(split.client, split.head, seed=7, partition_id=3)
    before = named_arrays({"client": split.client, "head": split.head})
    trainer.step(*ONE_CLASS[0], PLAN, 0)
    after = named_arrays({"client": split.client, "head": split.head})
    assert not np.array_equal(before["client.0.weight"], after["client.0.weight"])
    head = [name for name in before if name.startswith("head.")]
    assert head
    assert all(np.array_equal(before[name], after[name]) for name in head)
