"""Costs of a sample, against hand counts and the authors' figures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adasplit_flwr.costs import SampleCosts, sample_costs
from adasplit_flwr.split import split_sequential
from simulations.networks import lenet
from zerofl_flwr.costs import step_costs
from zerofl_flwr.errors import SettingsError


def test_a_linear_layer_takes_a_multiply_add_a_weight() -> None:
    assert step_costs(nn.Linear(6, 4), (6,)).forward == 24


def test_a_convolution_takes_its_kernel_at_each_place() -> None:
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1)
    # 8 x 8 becomes 4 x 4; each of 5 outputs there has 3 * 3 * 3 products.
    assert step_costs(layer, (3, 8, 8)).forward == 4 * 4 * 5 * 27


def test_the_network_stays_as_it_was() -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    step_costs(layer, (3,))
    assert not layer.training
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_lenets_first_cut_has_the_authors_figures() -> None:
    # 1.536 M, 0.6636 M and 9.3625 M in their accounting.
    costs = sample_costs(split_sequential(lenet(num_classes=5), "block1"), (3, 32, 32))
    assert costs == SampleCosts(
        client=1_536_000, head=663_552, server=9_362_500, activation_bytes=4 * 20 * 16 * 16
    )
    assert costs.client_step == 2_199_552


def test_a_shape_that_does_not_fit_is_refused() -> None:
    split = split_sequential(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)), cut=1)
    with pytest.raises(SettingsError, match="client"):
        sample_costs(split, (9,))
