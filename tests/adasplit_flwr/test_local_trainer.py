"""A client's steps against plain torch, and its state from one model to another."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adasplit_flwr.contrastive import nt_xent
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.plans import ExchangePlan
from adasplit_flwr.split import SplitModel
from adasplit_flwr.weights_payload import named_arrays
from tests.adasplit_flwr.small_clients import PLAN, Batch, data_of, same_arrays, small_split
from zerofl_flwr.errors import ClientFailedError, PayloadError, SettingsError
from zerofl_flwr.training import seed_of

SEED, WHO = 7, 3


def trainer_of(split: SplitModel, **options: Any) -> LocalTrainer:
    given = {"seed": SEED, "partition_id": WHO, **options}
    return LocalTrainer(split.client, split.head, **given)


def some_batches(count: int = 4) -> list[Batch]:
    data = data_of(WHO, 5 * count)
    return [data[5 * number : 5 * number + 5] for number in range(count)]


def arrays_of(split: SplitModel) -> dict[str, Any]:
    return named_arrays({"client": split.client, "head": split.head})


class ByHand:
    """The same training in plain torch, on a copy."""

    def __init__(self, split: SplitModel, plan: ExchangePlan) -> None:
        self.split = copy.deepcopy(split).train()
        self.plan = plan
        self.adam = torch.optim.Adam(
            [*self.split.client.parameters(), *self.split.head.parameters()],
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
        )

    def step(self, batch: Batch, iteration: int) -> tuple[torch.Tensor, float]:
        inputs, labels = batch
        torch.manual_seed(seed_of(SEED, 7, iteration, WHO))
        activations = self.split.client(inputs)
        own = nt_xent(self.split.head(activations), labels, self.plan.temperature)
        penalty = activations.abs().flatten(1).sum(dim=1).mean()
        self.adam.zero_grad()
        (own + self.plan.activation_penalty * penalty).backward()
        self.adam.step()
        return activations.detach(), float(own.detach())

    def gradient_step(self, batch: Batch, gradient: torch.Tensor, iteration: int) -> None:
        buffers = {name: b.clone() for name, b in self.split.client.named_buffers()}
        torch.manual_seed(seed_of(SEED, 7, iteration, WHO))
        self.adam.zero_grad()
        (self.split.client(batch[0]) * gradient).sum().backward()
        self.adam.step()
        self.split.client.load_state_dict(buffers, strict=False)


@pytest.mark.parametrize("penalty", [0.0, 0.01])
def test_steps_are_those_of_plain_torch(penalty: float) -> None:
    plan = dataclasses.replace(PLAN, activation_penalty=penalty)
    split = small_split()
    trainer, hand = trainer_of(split), ByHand(split, plan)
    for iteration, batch in enumerate(some_batches()):
        outcome = trainer.step(*batch, plan, iteration)
        activations, loss = hand.step(batch, iteration)
        assert not outcome.activations.requires_grad
        assert outcome.loss > 0
        if not penalty:
            assert torch.equal(outcome.activations, activations)
            assert outcome.loss == loss
            assert same_arrays(arrays_of(split), arrays_of(hand.split))
        # The penalty's terms are added up in another order.
        torch.testing.assert_close(outcome.activations, activations, rtol=1e-4, atol=1e-5)
        assert outcome.loss == pytest.approx(loss, rel=1e-4)
        for name, array in arrays_of(split).items():
            np.testing.assert_allclose(array, arrays_of(hand.split)[name], rtol=1e-4, atol=1e-5)


def test_activations_are_those_before_the_step_and_the_penalty_makes_them_smaller() -> None:
    [batch] = some_batches(1)
    split = small_split()
    before = copy.deepcopy(split).train()
    plan = dataclasses.replace(PLAN, activation_penalty=10.0)
    trainer = trainer_of(split)
    first = trainer.step(*batch, plan, 0)
    torch.manual_seed(seed_of(SEED, 7, 0, WHO))
    assert torch.equal(first.activations, before.client(batch[0]).detach())
    for _ in range(20):
        last = trainer.step(*batch, plan, 0)
    assert last.activations.sum() < 0.8 * first.activations.sum()


def test_a_head_that_works_in_place_does_not_change_what_is_uploaded() -> None:
    [batch] = some_batches(1)
    client = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
    head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 4))
    expected = client(batch[0]).detach()
    plan = dataclasses.replace(PLAN, activation_penalty=0.0)
    outcome = trainer_of(SplitModel(client, head, nn.Linear(6, 3))).step(*batch, plan, 0)
    assert torch.equal(outcome.activations, expected)
    assert (expected < 0).any()


def test_without_a_loss_of_its_own_a_client_does_not_train_but_counts_batches() -> None:
    split = small_split()
    before = arrays_of(split)
    trainer = trainer_of(split)
    [batch] = some_batches(1)
    outcome = trainer.step(*batch, dataclasses.replace(PLAN, local_loss=False), 0)
    after = arrays_of(split)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed == [
        f"client.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    ]
    assert outcome.loss == 0.0
    assert not outcome.activations.requires_grad
    assert sorted(trainer.state()) == sorted(f"weights/{name}" for name in before)
    torch.manual_seed(seed_of(SEED, 7, 0, WHO))
    assert torch.equal(outcome.activations, small_split().client.train()(batch[0]).detach())


def test_gradient_steps_are_those_of_plain_torch_and_leave_the_head_and_statistics() -> None:
    split = small_split()
    trainer, hand = trainer_of(split), ByHand(split, PLAN)
    batches = some_batches()
    for iteration, batch in enumerate(batches):
        shape = trainer.step(*batch, PLAN, iteration).activations.shape
        hand.step(batch, iteration)
        before = arrays_of(split)
        generator = torch.Generator().manual_seed(iteration)
        gradient = torch.randn(shape, generator=generator)
        sent = gradient.numpy()
        sent.flags.writeable = False
        trainer.apply_gradient(batch[0], sent, PLAN, iteration)
        hand.gradient_step(batch, gradient, iteration)
        for name, array in arrays_of(split).items():
            trained = name.startswith("client.") and not name.startswith(
                ("client.1.running", "client.1.num")
            )
            assert np.array_equal(array, before[name]) is not trained, name
    expected = arrays_of(hand.split)
    for name, array in arrays_of(split).items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-4, atol=1e-6)
    assert trainer.state()["steps/client.0.weight"] == 8
    assert trainer.state()["steps/head.hidden.weight"] == 4
    assert arrays_of(split)["client.1.num_batches_tracked"] == 4


def test_the_plans_learning_rate_and_weight_decay_count_at_each_step() -> None:
    plans = [
        dataclasses.replace(PLAN, learning_rate=rate, weight_decay=decay)
        for rate, decay in ((0.1, 0.0), (0.01, 0.5), (0.0, 0.5))
    ]
    split = small_split()
    trainer = trainer_of(split)
    hand = ByHand(split, plans[0])
    for iteration, (batch, plan) in enumerate(zip(some_batches(3), plans, strict=True)):
        before = arrays_of(split)["client.0.weight"]
        trainer.step(*batch, plan, iteration)
        hand.plan = plan
        for group in hand.adam.param_groups:
            group.update(lr=plan.learning_rate, weight_decay=plan.weight_decay)
        hand.step(batch, iteration)
        after = arrays_of(split)["client.0.weight"]
        assert np.array_equal(before, after) is (plan.learning_rate == 0)
        np.testing.assert_allclose(after, arrays_of(hand.split)["client.0.weight"], rtol=1e-5)


def test_a_state_goes_on_bit_for_bit_in_a_model_that_served_another_client() -> None:
    batches = some_batches()
    split, shared = small_split(), small_split(99)
    trainer = trainer_of(split)
    for iteration in (0, 1):
        trainer.step(*batches[iteration], PLAN, iteration)
    trainer.apply_gradient(batches[1][0], np.ones((5, 4, 4, 4), np.float32), PLAN, 1)
    saved = trainer.state()
    other = trainer_of(shared, partition_id=8)
    for iteration in range(3):
        other.step(*batches[iteration], PLAN, iteration)
    again = trainer_of(shared)
    again.load({name: np.array(array) for name, array in saved.items()})
    assert same_arrays(again.state(), saved)
    for iteration in (2, 3):
        outcomes = [t.step(*batches[iteration], PLAN, iteration) for t in (trainer, again)]
        assert torch.equal(outcomes[0].activations, outcomes[1].activations)
        assert outcomes[0].loss == outcomes[1].loss
    assert same_arrays(again.state(), trainer.state())
    assert not same_arrays(trainer.state(), saved)


def test_a_start_forgets_everything_that_another_client_left() -> None:
    batches = some_batches()
    weights = arrays_of(small_split())
    del weights["client.1.num_batches_tracked"]
    fresh, used = trainer_of(small_split()), trainer_of(small_split(99))
    used.step(*batches[3], PLAN, 3)
    states = []
    for trainer in (fresh, used):
        trainer.start(weights)
        assert not any(name.startswith("steps/") for name in trainer.state())
        trainer.step(*batches[0], PLAN, 0)
        states.append(trainer.state())
    assert same_arrays(*states)
    assert states[1]["weights/client.1.num_batches_tracked"] == 1


def test_replaced_weights_keep_adam_and_the_batch_count() -> None:
    trainer = trainer_of(small_split())
    trainer.step(*some_batches(1)[0], PLAN, 0)
    before = trainer.state()
    weights = arrays_of(small_split(5))
    del weights["client.1.num_batches_tracked"]
    trainer.replace_weights(weights)
    after = trainer.state()
    assert same_arrays(after, before | {f"weights/{name}": a for name, a in weights.items()})
    with pytest.raises(PayloadError, match=r"server, layer 0\.weight, field shape"):
        trainer.replace_weights({"client.0.weight": np.zeros(3, np.float32)})


def test_a_batch_depends_on_seed_iteration_and_client_and_leaves_the_global_generator() -> None:
    [batch] = some_batches(1)
    torch.manual_seed(5)
    expected = torch.rand(3)

    def activations(iteration: int = 0, **options: int) -> torch.Tensor:
        return trainer_of(small_split(), **options).step(*batch, PLAN, iteration).activations

    torch.manual_seed(5)
    first = activations()
    trainer_of(small_split()).apply_gradient(batch[0], np.ones(first.shape), PLAN, 4)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(activations(), first)
    for other in (activations(1), activations(seed=8), activations(partition_id=4)):
        assert not torch.equal(other, first)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("weights/client.0.weight", None, r"lacks weights/client\.0\.weight: it was made with"),
        ("exp_avg/client.0.bias", None, r"lacks exp_avg/client\.0\.bias"),
        ("weights/client.9.weight", np.zeros(3), r"holds weights/client\.9\.weight: it was made"),
        ("steps/head.other", np.array(3), r"holds steps/head\.other"),
        (
            "weights/client.0.bias",
            np.zeros(5, np.float32),
            r"0\.bias of the client's state is float32 of shape \(5,\), not float32 of \(4,\)",
        ),
        ("exp_avg_sq/client.0.bias", np.zeros(4), r"is float64 of shape \(4,\), not float32 of"),
        ("steps/client.0.bias", np.array([3]), r"is int64 of shape \(1,\), not int64 of \(\)"),
    ],
)
def test_a_state_of_other_parts_is_refused_and_changes_nothing(
    name: str, array: Any, message: str
) -> None:
    trainer = trainer_of(small_split())
    trainer.step(*some_batches(1)[0], PLAN, 0)
    state = trainer.state()
    wrong = {k: a * 2 for k, a in state.items() if k != name}
    if array is not None:
        wrong[name] = array
    with pytest.raises(SettingsError, match=message):
        trainer.load(wrong)
    assert same_arrays(trainer.state(), state)


def test_a_loss_that_is_not_finite_ends_training_and_changes_no_parameter() -> None:
    inputs, labels = some_batches(1)[0]
    split = small_split()
    trainer = trainer_of(split)
    before = {name: p.detach().clone() for name, p in split.named_parameters()}
    message = r"training diverged at learning rate 0\.01, iteration 12: the loss of a batch is nan"
    with pytest.raises(ClientFailedError, match=message):
        trainer.step(inputs * float("inf"), torch.zeros_like(labels), PLAN, 12)
    assert all(torch.equal(p, before[name]) for name, p in split.named_parameters())


def test_gradients_of_another_shape_or_for_nothing_are_refused() -> None:
    [batch] = some_batches(1)
    trainer = trainer_of(small_split())
    state = trainer.state()
    message = r"server, layer gradients, field shape: \(5, 4, 4, 4\) expected, \(4, 4, 4, 4\) came"
    with pytest.raises(PayloadError, match=message):
        trainer.apply_gradient(batch[0], np.ones((4, 4, 4, 4)), PLAN, 0)
    assert same_arrays(trainer.state(), state)  # running statistics included
    frozen = SplitModel(nn.Flatten(), nn.Linear(16, 2), nn.Linear(16, 3))
    with pytest.raises(SettingsError, match="the client part has no trainable parameters"):
        trainer_of(frozen).apply_gradient(batch[0], np.ones((5, 16)), PLAN, 0)


def test_parts_without_anything_to_train_are_refused() -> None:
    with pytest.raises(SettingsError, match="neither the client part nor the head has trainable"):
        trainer_of(SplitModel(nn.Flatten(), nn.Identity(), nn.Linear(16, 3)))


def test_frozen_parameters_stay_and_have_no_moments() -> None:
    split = small_split()
    split.client.get_parameter("0.weight").requires_grad_(False)
    trainer = trainer_of(split)
    before = arrays_of(split)
    trainer.step(*some_batches(1)[0], PLAN, 0)
    assert np.array_equal(arrays_of(split)["client.0.weight"], before["client.0.weight"])
    assert "steps/client.0.weight" not in trainer.state()
    assert "weights/client.0.weight" in trainer.state()
