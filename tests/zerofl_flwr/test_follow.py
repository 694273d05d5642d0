"""A model follows the plan that comes with a round's config."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zerofl_flwr
from tests.zerofl_flwr.client_messages import PLAN, config_of
from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.follow import apply_plan, follow_plan
from zerofl_flwr.sparsify import freeze_masks, sparsify
from zerofl_flwr.swat import sparse_layers

FROZEN = dataclasses.replace(PLAN, frozen=True)
# The middle layer's weights, of which half are four: -9, 8, 7, 6.
WEIGHTS = [[1, -9, 2, 3], [8, -4, 7, 6]]
TOP_HALF = [[False, True, False, False], [True, False, True, True]]


def model() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    with torch.no_grad():
        net.get_parameter("1.weight").copy_(torch.tensor(WEIGHTS))
    return sparsify(net, 0.1)


def settings_of(net: nn.Module) -> tuple[Any, ...]:
    layer = sparse_layers(net)["1"]
    state = layer.swat
    mask = None if layer.frozen_mask is None else layer.frozen_mask.tolist()
    fractions = (state.weights.sparsity, state.activations.sparsity, state.gradients.sparsity)
    return (*map(float, fractions), state.topk_period, mask)


def test_it_is_public() -> None:
    assert zerofl_flwr.follow_plan is follow_plan
    assert "follow_plan" in zerofl_flwr.__all__


def test_a_config_without_a_plan_changes_nothing() -> None:
    net = model()
    freeze_masks(net, {"1.weight": np.ones((2, 4), bool)})
    before = settings_of(net)
    assert follow_plan(net, {"learning-rate": 0.1}) is None
    assert settings_of(net) == before == (0.1, 0.1, 0.0, 10, [[True] * 4] * 2)


def test_the_rounds_fractions_and_period_are_set() -> None:
    net = model()
    plan = dataclasses.replace(
        PLAN, sparsity=0.75, activation_sparsity=0.5, gradient_sparsity=0.25, topk_period=3
    )
    assert follow_plan(net, config_of(plan, {"learning-rate": 0.1})) == plan
    assert settings_of(net) == (0.75, 0.5, 0.25, 3, None)


def test_a_frozen_round_keeps_the_top_of_the_weights_now_in_the_model() -> None:
    net = model()
    assert follow_plan(net, config_of(FROZEN)) == FROZEN
    assert settings_of(net) == (0.5, 0.5, 0.0, 10, TOP_HALF)
    with torch.no_grad():
        net.get_parameter("1.weight").neg_().add_(torch.tensor([[20.0, 0, 0, 0], [0, 0, 0, 0]]))
    follow_plan(net, config_of(FROZEN))
    assert settings_of(net)[-1] == [[True, True, False, False], [True, False, True, False]]
    follow_plan(net, config_of(PLAN))
    assert settings_of(net)[-1] is None


def test_known_patterns_win_over_the_top_of_the_weights() -> None:
    net = model()
    apply_plan(net, FROZEN, {"1.weight": np.array([0, 7]), "other": np.array([1])})
    assert settings_of(net)[-1] == [[True, False, False, False], [False, False, False, True]]
    with pytest.raises(PayloadError, match=r"server, layer 1\.weight, field encoding: .*pattern"):
        apply_plan(net, FROZEN, {"other": np.array([1])})


def test_a_masked_layer_that_is_not_frozen_keeps_following_its_top_k() -> None:
    net = sparsify(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), 0.5)
    layers = sparse_layers(net)
    assert list(layers) == ["1", "2"]
    apply_plan(net, FROZEN, {"2.weight": np.array([3])})
    assert layers["1"].frozen_mask is None
    assert layers["1"].swat.weights.sparsity == Decimal("0.5")
    mask = layers["2"].frozen_mask
    assert mask is not None
    assert mask.flatten().nonzero().tolist() == [[3]]


def test_a_model_that_is_not_sparse_is_named_as_such() -> None:
    plain = nn.Linear(3, 2)
    with pytest.raises(SettingsError, match="no sparse layer; call sparsify"):
        follow_plan(plain, config_of())
    dense = dataclasses.replace(PLAN, sparsity=0.0, activation_sparsity=0.0, mask_ratio=0.0)
    assert follow_plan(plain, config_of(dense)) == dense


@pytest.mark.parametrize("entry", [{"zerofl-sparsity": 2.0}, {"zerofl-topk-period": 0}])
def test_a_bad_plan_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        follow_plan(model(), config_of() | entry)
