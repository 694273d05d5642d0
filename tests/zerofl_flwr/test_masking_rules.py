"""The rules that choose the layers to mask."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.masking_rules import choose, exemptions, reason_not_maskable


class Block(nn.Module):
    """The layers of a residual block with a 1x1 shortcut, in ResNet's order of registration."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.shortcut = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2, bias=False), nn.BatchNorm2d(8))


def small_resnet() -> nn.Sequential:
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 4, 3, padding=1, bias=False))
    model.add_module("bn1", nn.BatchNorm2d(4))
    model.add_module("layer1", Block())
    model.add_module("fc", nn.Linear(8, 10))
    return model


def test_a_resnet_masks_its_inner_3x3_convolutions() -> None:
    model = small_resnet()
    assert choose(model, None) == {"layer1.conv1", "layer1.conv2"}
    reasons = exemptions(model)
    assert reasons["conv1"] == "input layer"
    assert reasons["fc"] == "classifier (last layer)"
    assert reasons["layer1.shortcut.0"] == "1x1 convolution"
    assert reasons["layer1.bn1"] == "normalisation"
    assert reasons["layer1"] == "neither convolution nor linear layer"


@pytest.mark.parametrize(
    ("layer", "is_masked"),
    [
        (nn.Conv1d(4, 4, 1), False),
        (nn.Conv3d(4, 4, (1, 1, 1)), False),
        (nn.Conv2d(4, 4, (1, 3)), True),
        (nn.Conv1d(4, 4, 2), True),
        (nn.Conv3d(4, 4, (1, 1, 2)), True),
        (nn.Linear(1, 1), True),
        (nn.ConvTranspose2d(4, 4, 3), False),
        (nn.Embedding(4, 4), False),
        (nn.LayerNorm(4), False),
        (nn.GroupNorm(2, 4), False),
    ],
)
def test_the_kinds_that_are_masked(layer: nn.Module, is_masked: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 4))
    assert choose(model, None) == ({"1"} if is_masked else set())


def test_models_of_one_and_two_layers_keep_both_ends() -> None:
    assert choose(nn.Linear(3, 3), None) == set()
    assert choose(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), None) == set()
    assert choose(nn.ReLU(), None) == set()


def test_subclasses_are_left_alone() -> None:
    attention = nn.MultiheadAttention(4, 2)
    reason = reason_not_maskable(attention.out_proj)
    assert reason == "a subclass, whose owner may go around forward"
    model = nn.Sequential(nn.Linear(4, 4), attention, nn.Linear(4, 4))
    assert choose(model, None) == set()
    assert choose(model, lambda name, module: True) == {"0", "2"}


def test_computed_weights_are_left_alone() -> None:
    for layer in (parametrizations.weight_norm(nn.Linear(4, 4)), spectral_norm(nn.Linear(4, 4))):
        assert reason_not_maskable(layer) == "its weight is computed, not a parameter"
        model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 4))
        assert choose(model, None) == set()


def test_a_layer_that_cannot_be_masked_still_is_the_input_layer() -> None:
    first = parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(first, nn.Linear(4, 4), nn.Linear(4, 4))
    assert choose(model, None) == {"1"}


def test_names_decide_alone() -> None:
    model = small_resnet()
    assert choose(model, ["conv1", "fc", "layer1.shortcut.0"]) == {
        "conv1", "fc", "layer1.shortcut.0"
    }  # fmt: skip
    assert choose(model, ()) == set()


def test_a_predicate_decides_alone_and_sees_only_what_can_be_masked() -> None:
    model, seen = small_resnet(), []

    def is_linear(name: str, module: nn.Module) -> bool:
        seen.append(name)
        return isinstance(module, nn.Linear)

    assert choose(model, is_linear) == {"fc"}
    assert seen == ["conv1", "layer1.conv1", "layer1.conv2", "layer1.shortcut.0", "fc"]


def test_a_shared_module_counts_under_its_first_name() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(3, 3), shared, shared, nn.Linear(3, 3))
    assert choose(model, None) == {"1"}
    assert choose(model, ["2"]) == {"1"}


@pytest.mark.parametrize(
    ("masked", "message"),
    [
        (
            ["layer1.conv3"],
            r"'layer1\.conv3', which the model does not have; did you mean 'layer1\.conv",
        ),
        (["conv1.weight"], r"which the model does not have; did you mean 'conv1'"),
        (["layer1.bn1"], r"'layer1\.bn1', which cannot be masked: normalisation"),
        (["layer1"], r"'layer1', which cannot be masked: neither convolution nor linear"),
        ("conv1", r"a collection of layer names, got the text 'conv1'"),
    ],
)
def test_bad_names_are_errors(masked: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        choose(small_resnet(), masked)


def test_an_unknown_name_where_nothing_can_be_masked() -> None:
    with pytest.raises(SettingsError, match=r"'conv', which the model does not have$"):
        choose(nn.ReLU(), ["conv"])
