from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from simulations.models import (
    BUILT_IN,
    build_model,
    digits_cnn,
    femnist_cnn,
    lenet,
    paper_masked,
    resnet18,
)
from zerofl_flwr.errors import SettingsError

DIGITS = (1, 8, 8)


class Stateful(nn.Module):
    """Counts its forward passes, takes no in_channels, and returns what it is told to."""

    def __init__(self, num_classes: int, answer: Any = None) -> None:
        super().__init__()
        self.linear = nn.Linear(64, num_classes)
        self.drop = nn.Dropout().eval()
        self.answer = answer
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.linear(x.flatten(1)) if self.answer is None else self.answer


def keywords(**kwargs: int) -> nn.Module:
    assert set(kwargs) == {"num_classes", "in_channels"}
    return digits_cnn(**kwargs)


def sized(num_classes: int, in_channels: int, input_size: tuple[int, int]) -> nn.Module:
    return femnist_cnn(num_classes, in_channels, input_size)


@pytest.fixture(autouse=True)
def own_models() -> Iterator[None]:
    """A package of the user's, with a module of models."""
    module = types.ModuleType("own_package.models")
    for function in (Stateful, keywords, sized):
        setattr(module, function.__name__, function)
    attributes: dict[str, Any] = {
        "no_classes": lambda in_channels: digits_cnn(in_channels=in_channels),
        "needs_more": lambda num_classes, depth: digits_cnn(num_classes),
        "no_module": lambda num_classes: "a model",
        "too_narrow": lambda num_classes: Stateful(num_classes - 1),
        "no_tensor": lambda num_classes: Stateful(num_classes, answer=[1, 2]),
        "not_callable": 3,
    }
    for name, value in attributes.items():
        setattr(module, name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "own_package", types.ModuleType("own_package"))
        patch.setitem(sys.modules, "own_package.models", module)
        yield


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("spec", ["resnet18", "femnist_cnn", "lenet", "digits_cnn"])
def test_built_in_models_fit_every_data_set(spec: str, shape: tuple[int, int, int]) -> None:
    model = build_model(spec, 7, shape)
    assert model.training
    with torch.no_grad():
        assert model.eval()(torch.randn(3, *shape)).shape == (3, 7)


def test_seed_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    first = weights(build_model("digits_cnn", 10, DIGITS, seed=5))
    torch.manual_seed(2)
    assert torch.equal(weights(build_model("digits_cnn", 10, DIGITS, seed=5)), first)
    assert not torch.equal(weights(build_model("digits_cnn", 10, DIGITS, seed=6)), first)


def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    build_model("digits_cnn", 10, DIGITS, seed=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_own_function_is_imported_and_not_disturbed_by_the_trial() -> None:
    model = build_model("own_package.models:Stateful", 4, DIGITS)
    assert isinstance(model, Stateful)
    assert model.calls == 0
    assert model.training
    assert not model.drop.training


def test_own_function_gets_what_its_signature_takes() -> None:
    assert isinstance(build_model("own_package.models:keywords", 4, DIGITS), nn.Sequential)
    assert isinstance(build_model("own_package.models:sized", 4, (1, 28, 20)), nn.Sequential)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resnet81", "unknown model 'resnet81'; did you mean 'resnet18'"),
        ("mine", "package.module:function"),
        ("own_package.models:", "package.module:function"),
        ("own_package.nothing:f", "cannot import 'own_package.nothing'"),
        ("own_package.models:keyword", "did you mean 'keywords'"),
        ("own_package.models:not_callable", "unknown function of own_package.models"),
        ("own_package.models:no_classes", "must take an argument num_classes"),
        ("own_package.models:needs_more", "needs arguments that it is not given: depth"),
        ("own_package.models:no_module", "must return an nn.Module, it returned str"),
        ("own_package.models:no_tensor", r"must return a tensor of shape \(2, 4\).* list"),
        ("own_package.models:too_narrow", r"must return shape \(2, 4\).* it returned \(2, 3\)"),
    ],
)
def test_unusable_model_is_refused(spec: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build_model(spec, 4, DIGITS)


def test_model_that_does_not_fit_the_samples_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"fails on a batch of shape \(2, 3, 32, 32\)"):
        build_model("own_package.models:Stateful", 4, (3, 32, 32))


def test_failed_build_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    with pytest.raises(SettingsError):
        build_model("own_package.models:too_narrow", 4, DIGITS)
    assert torch.equal(torch.get_rng_state(), before)


def test_masked_layers_exist_and_leave_out_the_last() -> None:
    for spec, model in (("femnist_cnn", femnist_cnn()), ("digits_cnn", digits_cnn())):
        masked = paper_masked(spec)
        assert masked == ("conv1", "conv2", "fc1")
        assert set(masked) < dict(model.named_modules()).keys()
    assert paper_masked("resnet18") == ()
    assert paper_masked("lenet") == ()
    assert paper_masked("own_package.models:keywords") == ()


def test_built_in_names() -> None:
    assert set(BUILT_IN) == {"resnet18", "femnist_cnn", "lenet", "digits_cnn"}
    assert BUILT_IN["resnet18"] is resnet18
    assert BUILT_IN["lenet"] is lenet
