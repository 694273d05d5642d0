"""Costs of a sample, against hand counts and the authors' figures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adasplit_flwr.costs import split_step_costs
from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel, split_sequential
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
    split = split_sequential(lenet(num_classes=5), "block1")
    costs = split_step_costs(split, (3, 32, 32), AdaSplitSettings())
    assert costs.again.forward == 1_536_000
    assert costs.own.forward == 1_536_000 + 663_552
    assert costs.server.forward == 9_362_500


def test_a_shape_that_does_not_fit_is_refused() -> None:
    split = split_sequential(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)), cut=1)
    with pytest.raises(SettingsError, match="client"):
        split_step_costs(split, (9,), AdaSplitSettings())


@pytest.mark.parametrize(("local_loss", "own"), [(True, (45, 105)), (False, (30, 30))])
@pytest.mark.parametrize(("gradient", "server"), [("none", (32, 76)), ("selected", (32, 96))])
def test_steps_of_a_client_and_of_the_server(
    local_loss: bool, own: tuple[int, int], gradient: str, server: tuple[int, int]
) -> None:
    # Client 6-5, head 5-3, server 5-4-3; what comes in needs no gradient unless it goes back.
    split = SplitModel(
        nn.Linear(6, 5), nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    )
    settings = AdaSplitSettings(kappa=0.0, local_loss=local_loss, server_gradient=gradient)
    costs = split_step_costs(split, (6,), settings)
    assert (costs.own.forward, costs.own.total) == own
    assert (costs.again.forward, costs.again.total) == (30, 60)
    assert (costs.server.forward, costs.server.total) == server
