"""Making models sparse in place, and steering them."""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.sparsify import (
    freeze_masks,
    masked_weight_names,
    set_sparsity,
    set_topk_period,
    sparsify,
    unfreeze_masks,
)
from zerofl_flwr.swat import (
    SparseConv1d,
    SparseConv2d,
    SparseConv3d,
    SparseLinear,
    sparse_layers,
)


class Block(nn.Module):
    """A residual block with a 1x1 shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.shortcut = nn.Conv2d(4, 8, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        result: torch.Tensor = (inner + self.shortcut(x)).relu()
        return result


class SmallResNet(nn.Module):
    """An input convolution, one block, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.block = Block()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(self.block(self.conv1(x).relu()).mean((2, 3)))
        return result


def small_net(seed: int = 0) -> SmallResNet:
    torch.manual_seed(seed)
    return SmallResNet()


def three_linears() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))


def states(model: nn.Module) -> list[tuple[str, str, str]]:
    """List weight, activation and gradient sparsity of the sparse layers."""
    return [
        (
            str(layer.swat.weights.sparsity),
            str(layer.swat.activations.sparsity),
            str(layer.swat.gradients.sparsity),
        )
        for layer in sparse_layers(model).values()
    ]


def test_the_model_is_changed_in_place_and_nothing_else_about_it() -> None:
    model = small_net()
    parameters = dict(model.named_parameters())
    modules = dict(model.named_modules())
    keys, before = list(model.state_dict()), copy.deepcopy(model.state_dict())
    calls: list[str] = []
    model.block.conv1.register_forward_hook(lambda *_: calls.append("hook"))
    assert sparsify(model, 0.9) is model
    assert type(model.block.conv1) is SparseConv2d
    assert type(model.conv1) is nn.Conv2d
    assert type(model.block.shortcut) is nn.Conv2d
    assert type(model.fc) is nn.Linear
    assert {name: id(value) for name, value in model.named_parameters()} == {
        name: id(value) for name, value in parameters.items()
    }
    assert all(module is modules[name] for name, module in model.named_modules())
    assert list(model.state_dict()) == keys
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(torch.randn(2, 3, 8, 8))
    assert calls == ["hook"]


def test_every_kind_has_its_sparse_twin() -> None:
    kinds = [nn.Conv1d(2, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv3d(2, 2, 3), nn.Linear(2, 2)]
    model = sparsify(nn.Sequential(*kinds), 0.5, masked=["0", "1", "2", "3"])
    expected = [SparseConv1d, SparseConv2d, SparseConv3d, SparseLinear]
    assert [type(module) for module in model.children()] == expected
    assert all(
        isinstance(sparse, type(plain))
        for sparse, plain in zip(model.children(), kinds, strict=True)
    )


def test_state_dicts_go_both_ways() -> None:
    plain, sparse = small_net(1), sparsify(small_net(2), 0.9)
    sparse.load_state_dict(plain.state_dict())
    name = "block.conv1.weight"
    assert torch.equal(sparse.get_parameter(name), plain.get_parameter(name))
    small_net(3).load_state_dict(sparse.state_dict())


def test_masked_weight_names_in_state_dict_order() -> None:
    model = small_net()
    assert masked_weight_names(model) == []
    sparsify(model, 0)
    assert masked_weight_names(model) == ["block.conv1.weight", "block.conv2.weight"]
    assert masked_weight_names(sparsify(nn.Linear(2, 2), 0.5, masked=[""])) == ["weight"]


def test_a_shared_module_is_masked_under_all_its_names() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(3, 3), shared, shared, nn.Linear(3, 3))
    sparsify(model, 0.5)
    assert masked_weight_names(model) == ["1.weight", "2.weight"]
    assert set(masked_weight_names(model)) <= set(model.state_dict())


def test_training_lowers_the_loss_and_moves_the_pattern() -> None:
    model = sparsify(small_net(), 0.8, gradient_sparsity=0.1, topk_period=3)
    inputs, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weight = model.get_parameter("block.conv1.weight")
    start = weight.detach().clone()
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert bool((weight != start).all())


def test_equal_runs_give_equal_models() -> None:
    weights = []
    for _ in range(2):
        model = sparsify(small_net(), 0.8)
        torch.manual_seed(5)
        for _ in range(3):
            model(torch.randn(4, 3, 8, 8)).square().sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.01).step()
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_sparsifying_twice_updates() -> None:
    model = three_linears()
    sparsify(model, 0.9, activation_sparsity=0.1, gradient_sparsity=0.2)
    sparsify(model, "0.8")
    assert type(model[1]) is SparseLinear
    assert states(model) == [("0.8", "0.8", "0.0")]
    sparsify(model, 0.7, masked=["0"])
    assert [type(layer) for layer in model] == [SparseLinear, nn.Linear, nn.Linear]
    assert list(model[1].state_dict()) == ["weight", "bias"]
    assert not hasattr(model[1], "swat")
    assert not hasattr(model[1], "frozen_mask")
    sparsify(model, 0, masked=[])
    assert not sparse_layers(model)
    assert torch.equal(model(torch.ones(1, 4)), three_linears()(torch.ones(1, 4)))


def test_set_sparsity_of_a_new_round() -> None:
    model = sparsify(three_linears(), 0.5)
    set_sparsity(model, 0.9)
    assert states(model) == [("0.9", "0.9", "0.0")]  # activations follow
    set_sparsity(model, 0.8, 0.1, 0.2)
    assert states(model) == [("0.8", "0.1", "0.2")]
    set_sparsity(model, "0.7")  # what was given once stays
    assert states(model) == [("0.7", "0.1", "0.2")]
    fixed = sparsify(three_linears(), 0.5, activation_sparsity=0)
    set_sparsity(fixed, 0.9)
    assert states(fixed) == [("0.9", "0", "0.0")]


def test_set_sparsity_of_a_plain_model() -> None:
    model = three_linears()
    set_sparsity(model, 0)
    with pytest.raises(SettingsError, match="no sparse layer; call sparsify"):
        set_sparsity(model, 0.5)


def test_set_topk_period() -> None:
    model = sparsify(three_linears(), 0.5)
    set_topk_period(model, 3)
    assert sparse_layers(model)["1"].swat.topk_period == 3
    set_topk_period(three_linears(), 3)
    with pytest.raises(SettingsError, match="topk_period must be a positive integer, got 0"):
        set_topk_period(model, 0)


@pytest.mark.parametrize("kind", ["tensor", "array", "read-only array"])
def test_freezing_copies_the_mask(kind: str) -> None:
    model = sparsify(three_linears(), 0.5)
    given: Any = torch.eye(4, dtype=torch.bool)
    if kind != "tensor":
        given = given.numpy().copy()
        given.flags.writeable = kind == "array"
    freeze_masks(model, {"1.weight": given})
    if kind != "read-only array":
        given[0, 0] = False
    layer = sparse_layers(model)["1"]
    assert layer.frozen_mask is not None
    assert torch.equal(layer.frozen_mask, torch.eye(4, dtype=torch.bool))
    assert list(model.state_dict()) == list(three_linears().state_dict())
    unfreeze_masks(model)
    assert layer.frozen_mask is None


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (
            {"1.wait": np.ones((4, 4), bool)},
            r"'1\.wait', which is no masked weight; did you mean '1\.weight'\?",
        ),
        ({"0.weight": np.ones((4, 4), bool)}, r"cannot freeze '0\.weight'"),
        (
            {"1.weight": np.ones((4, 3), bool)},
            r"expected bool of shape \(4, 4\), got bool of \(4, 3\)",
        ),
        ({"1.weight": torch.ones(4, 4)}, r"expected bool of shape \(4, 4\), got float32 of"),
        ({"1.weight": np.ones((4, 4), np.uint8)}, r"got uint8 of \(4, 4\)"),
    ],
)
def test_bad_masks_are_errors_and_change_nothing(masks: Any, message: str) -> None:
    model = sparsify(three_linears(), 0.5)
    good = {"1.weight": np.ones((4, 4), bool)} if "1.weight" not in masks else {}
    with pytest.raises(SettingsError, match=message):
        freeze_masks(model, good | masks)
    assert sparse_layers(model)["1"].frozen_mask is None


def test_freezing_and_unfreezing_a_plain_model() -> None:
    model = three_linears()
    unfreeze_masks(model)
    freeze_masks(model, {})
    with pytest.raises(
        SettingsError, match=r"cannot freeze '1\.weight', which is no masked weight$"
    ):
        freeze_masks(model, {"1.weight": np.ones((4, 4), bool)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.5}, r"sparsity must lie between 0 and 1, got 1\.5"),
        ({"sparsity": 0.5, "activation_sparsity": "x"}, "activation_sparsity must be a number"),
        ({"sparsity": 0.5, "gradient_sparsity": -1}, "gradient_sparsity must lie"),
        ({"sparsity": 0.5, "topk_period": 0}, "topk_period must be a positive integer"),
        ({"sparsity": 0.5, "topk_period": 2.0}, "topk_period must be a positive integer"),
        ({"sparsity": 0.5, "topk_period": True}, "topk_period must be a positive integer"),
        ({"sparsity": 0.5, "backend": "fast"}, "unknown backend 'fast'; did you mean 'reference'"),
        ({"sparsity": 0.5, "masked": []}, "no layer would be masked"),
        ({"sparsity": 0.5, "masked": ["3"]}, "masked names '3'"),
    ],
)
def test_bad_settings_are_errors_and_change_nothing(settings: Any, message: str) -> None:
    model = three_linears()
    with pytest.raises(SettingsError, match=message):
        sparsify(model, **settings)
    assert not sparse_layers(model)


def test_a_model_without_inner_layers_needs_names() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(SettingsError, match="no layer would be masked"):
        sparsify(model, 0.5)
    sparsify(model, 0)
    sparsify(model, 0.5, masked=["0"])
    assert masked_weight_names(model) == ["0.weight"]


def test_the_log_says_what_was_masked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="zerofl_flwr"):
        sparsify(small_net(), 0.95)
    assert caplog.messages == [
        "sparsity 0.95: 2 of 5 layers masked, 864 of 1,081 parameters (79.9%)"
    ]
    assert caplog.records[0].name == "zerofl_flwr"


def test_a_weight_tied_to_a_plain_layer_is_masked_in_the_sparse_layer_only() -> None:
    model = three_linears()
    model[1].weight = model[0].weight
    sparsify(model, 1, activation_sparsity=0)
    inputs = torch.ones(1, 4)
    hidden = nn.functional.linear(
        inputs, model.get_parameter("0.weight"), model.get_parameter("0.bias")
    )
    assert torch.equal(model[0](inputs), hidden)
    assert torch.equal(model[1](hidden), model.get_parameter("1.bias")[None])
