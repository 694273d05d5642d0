"""Multiply-adds of a training step, against hand counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zerofl_flwr.costs import LayerCosts, StepCosts, step_costs
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.periodic_topk import Timing
from zerofl_flwr.sparsify import sparsify
from zerofl_flwr.swat import sparse_layers

# 4 x 4 places with 2 kernels of 3 * 3 * 3: 864 products; then 32 values onto 5 outputs: 160.
CONVOLUTION, LINEAR = 864, 160


def tiny() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)
    )


def test_a_step_takes_the_forward_pass_and_the_gradients_that_are_needed() -> None:
    costs = step_costs(tiny(), (3, 4, 4), layers=["0", "4"])
    assert costs == StepCosts(
        forward=1024,
        total=1024 + CONVOLUTION + 2 * LINEAR,  # the input of the network needs no gradient
        layers=(LayerCosts(54, 864, 0, 864), LayerCosts(160, 160, 160, 160)),
    )
    with_input = step_costs(tiny(), (3, 4, 4), input_gradient=True)
    assert with_input == StepCosts(1024, 3 * 1024)


def test_what_is_not_trained_costs_no_gradient() -> None:
    model = tiny()
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    costs = step_costs(model, (3, 4, 4), layers=["4"])
    assert costs == StepCosts(1024, 1024 + LINEAR, (LayerCosts(160, 160, 0, 160),))
    assert step_costs(model.requires_grad_(False), (3, 4, 4)) == StepCosts(1024, 1024)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_grouped_convolutions_backward_pass_takes_twice_its_forward_pass(
    transposed: bool,
) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    # 3 x 3 places, 4 channels in groups of one, kernels of 2 x 2.
    size, forward = (3 if transposed else 4), 9 * 4 * 4
    costs = step_costs(kind(4, 4, 2, groups=4), (4, size, size), input_gradient=True)
    assert costs == StepCosts(forward, 3 * forward)


def test_sparse_layers_count_by_their_non_zeros() -> None:
    costs = step_costs(tiny(), (3, 4, 4), layers=["0", "4"])
    # Of 54 weights 14 are kept, of 160 are 40; of the inputs one half.
    forward = 864 * 14 / 54 + 160 * 40 / 160
    backward = 864 / 2 + 160 * 40 / 160 + 160 / 2
    assert costs.sparse(0.75, 0.5) == pytest.approx((forward, forward + backward))
    dense_convolution = step_costs(tiny(), (3, 4, 4), layers=["4"])
    assert dense_convolution.sparse(0.75, 1.0) == (864 + 40, 864 + 40 + 864 + 40)


def test_without_sparsity_the_dense_counts_come_out_exactly() -> None:
    costs = step_costs(tiny(), (3, 4, 4), layers=["0", "4"])
    assert costs.sparse(0.0, 0.0) == (costs.forward, costs.total) == (1024, 2208)


def test_the_shares_are_those_of_the_sparse_layers_themselves() -> None:
    sparse = sparsify(tiny(), 0.75, masked=["0", "4"])
    kept = [
        int(layer.swat.masked_weight(layer.weight, None, Timing.EXACT).count_nonzero())
        for layer in sparse_layers(sparse).values()
    ]
    assert kept == [14, 40]


def test_neither_the_model_nor_the_random_state_changes() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    step_costs(model, (3,))
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_that_fails_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"fails to train on a batch of \(2, 7\)"):
        step_costs(nn.Linear(8, 4), (7,))
    with pytest.raises(SettingsError, match="a ReLU has no weight"):
        step_costs(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), (8,), layers=["1"])
