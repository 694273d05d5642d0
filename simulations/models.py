"""Build a model from its name in the configuration, and check that it fits the data."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from simulations.networks import digits_cnn, femnist_cnn, lenet, resnet18
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name

__all__ = [
    "BUILT_IN",
    "build_model",
    "digits_cnn",
    "femnist_cnn",
    "lenet",
    "paper_masked",
    "resnet18",
]

BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "femnist_cnn": femnist_cnn,
    "lenet": lenet,
    "digits_cnn": digits_cnn,
}
_PAPER_MASKED = {
    "femnist_cnn": ("conv1", "conv2", "fc1"),
    "digits_cnn": ("conv1", "conv2", "fc1"),
}


def paper_masked(spec: str) -> tuple[str, ...]:
    """Return which layers of a built-in model are sparse in the paper, where that is special.

    Its FEMNIST CNN is masked up to the last layer, input layer included. Our study found 95 % of
    an input layer's few weights too much to leave out.

    Parameters
    ----------
    spec : str
        As for `build_model`.

    Returns
    -------
    tuple of str
        Module names for the `masked` argument of `zerofl_flwr.sparsify`; empty where its own
        choice is the paper's.
    """
    return _PAPER_MASKED.get(spec, ())


def build_model(
    spec: str, num_classes: int, sample_shape: tuple[int, int, int], *, seed: int = 0
) -> nn.Module:
    """Build a model and try it on a batch of zeros.

    Parameters
    ----------
    spec : str
        ``"resnet18"``, ``"femnist_cnn"``, ``"lenet"``, ``"digits_cnn"``, or
        ``"package.module:function"``; that function is called with ``num_classes`` and, if it
        takes them, ``in_channels`` and ``input_size`` ((height, width) in pixels), and returns an
        ``nn.Module``.
    num_classes : int
        Number of classes.
    sample_shape : tuple of int
        ``(channels, height, width)`` of a sample.
    seed : int
        Seed of the initial weights. The global random state stays as it was.

    Returns
    -------
    nn.Module
        In training mode, on the CPU unless the function put it elsewhere.

    Raises
    ------
    SettingsError
        If the name is unknown, the function cannot be imported or called so, it returns
        something else, or the model's output is not (batch, num_classes).
    """
    function = BUILT_IN[spec] if spec in BUILT_IN else _import_function(spec)
    arguments = _arguments(spec, function, num_classes, sample_shape)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also seed the accelerators, which are not forked.
        torch.default_generator.manual_seed(seed)
        model = function(**arguments)
        if not isinstance(model, nn.Module):
            raise SettingsError(
                f"model {spec!r} must return an nn.Module, it returned {type(model).__name__}"
            )
        _try_on_zeros(spec, model, num_classes, sample_shape)
    return model


def _import_function(spec: str) -> Callable[..., Any]:
    module_name, colon, function_name = spec.partition(":")
    if not (module_name and colon and function_name):
        raise SettingsError(
            f"{unknown_name('model', spec, BUILT_IN)}; a model of your own is written "
            "package.module:function"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SettingsError(f"model {spec!r}: cannot import {module_name!r} ({error})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if inspect.isroutine(value)]
        raise SettingsError(unknown_name(f"function of {module_name}", function_name, known))
    found: Callable[..., Any] = function
    return found


def _arguments(
    spec: str,
    function: Callable[..., Any],
    num_classes: int,
    sample_shape: tuple[int, int, int],
) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    channels, height, width = sample_shape
    offered = {
        "num_classes": num_classes,
        "in_channels": channels,
        "input_size": (height, width),
    }
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments = {
        name: value
        for name, value in offered.items()
        if name in parameters or (takes_any and name != "input_size")
    }
    if "num_classes" not in arguments:
        raise SettingsError(f"model {spec!r} must take an argument num_classes")
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in arguments
    ]
    if missing:
        raise SettingsError(
            f"model {spec!r} needs arguments that it is not given: {', '.join(missing)}"
        )
    return arguments


def _try_on_zeros(
    spec: str, model: nn.Module, num_classes: int, sample_shape: tuple[int, int, int]
) -> None:
    """Run a copy of the model, so that the model itself keeps its state."""
    batch = torch.zeros(2, *sample_shape)
    trial = copy.deepcopy(model).cpu().eval()
    try:
        with torch.no_grad():
            output = trial(batch)
    except Exception as error:
        raise SettingsError(
            f"model {spec!r} fails on a batch of shape {tuple(batch.shape)}: {error}"
        ) from error
    expected = (2, num_classes)
    if not isinstance(output, torch.Tensor):
        raise SettingsError(
            f"model {spec!r} must return a tensor of shape {expected} for a batch of 2 samples, "
            f"it returned {type(output).__name__}"
        )
    if tuple(output.shape) != expected:
        raise SettingsError(
            f"model {spec!r} must return shape {expected} for a batch of 2 samples of shape "
            f"{sample_shape}, it returned {tuple(output.shape)}"
        )
