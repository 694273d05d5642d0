"""What a training step takes: multiply-adds, of sparse layers by what is not zero."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.topk import FractionLike, count_unmasked, exact_fraction

_BATCH = 2  # normalisation cannot train on one sample


@dataclass(frozen=True)
class LayerCosts:
    """What one sample costs a layer.

    Parameters
    ----------
    weights : int
        Entries of its weight.
    forward, input_gradient, weight_gradient : int
        Multiply-adds; 0 for a gradient that is not needed.
    """

    weights: int
    forward: int = 0
    input_gradient: int = 0
    weight_gradient: int = 0


@dataclass(frozen=True)
class StepCosts:
    """What one sample costs in a training step.

    Parameters
    ----------
    forward : int
        Multiply-adds of the forward pass, dense.
    total : int
        Of the backward pass too.
    layers : tuple of LayerCosts
        The layers that train sparse; parts of both.
    """

    forward: int
    total: int
    layers: tuple[LayerCosts, ...] = ()

    def sparse(
        self, sparsity: FractionLike, activation_sparsity: FractionLike
    ) -> tuple[float, float]:
        """Return `forward` and `total` with the layers sparse, counted by their non-zeros.

        A layer's forward pass and the gradient of its input are multiplied by the share of its
        weights that is kept, ``ceil((1 - sparsity) n) / n``, and the gradient of its weights by the
        share of its input that is kept, ``1 - activation_sparsity``. Zeros that are there anyhow,
        such as ReLU's, and those of sparse output gradients are not taken off. The search for the
        top-K has no multiply-adds. With both sparsities 0 the dense counts come out exactly.

        Raises
        ------
        SettingsError
            If a sparsity is not between 0 and 1.
        """
        dropped = float(exact_fraction(activation_sparsity, "activation_sparsity"))
        forward, backward = 0.0, 0.0
        for layer in self.layers:
            zeros = 1 - count_unmasked(layer.weights, sparsity) / layer.weights
            forward += layer.forward * zeros
            backward += layer.input_gradient * zeros + layer.weight_gradient * dropped
        return self.forward - forward, self.total - forward - backward


def step_costs(
    model: nn.Module,
    sample_shape: tuple[int, ...],
    *,
    layers: Collection[str] = (),
    input_gradient: bool = False,
) -> StepCosts:
    """Count what one sample costs in a training step, by taking one on a batch of zeros.

    Matrix products and convolutions count, and nothing else: no element-wise work, no normalisation
    and pooling, no optimizer, and nothing of the loss. torch's FlopCounterMode counts; it takes a
    multiply-add for two operations, here it is one. Its count of a grouped convolution's backward
    pass is too large by the number of groups, and is put right here.

    Parameters
    ----------
    model : nn.Module
        A copy of it runs, in training mode and on the CPU. What needs no gradient costs none: the
        model's input (but see `input_gradient`), and weights that are not trained.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    layers : collection of str
        Names of the layers that are to be told apart: those that train sparse.
    input_gradient : bool
        Whether the gradient of the model's input is computed too.

    Raises
    ------
    SettingsError
        If the model fails on the batch, or one of the layers has no weight.
    """
    tried = copy.deepcopy(model).cpu().train()
    example = next((p for p in tried.parameters() if p.is_floating_point()), torch.zeros(()))
    inputs = torch.zeros(_BATCH, *sample_shape, dtype=example.dtype)
    counter = FlopCounterMode(
        display=False,
        custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward},
    )
    told = {name: tried.get_submodule(name) for name in layers}
    counts = {name: LayerCosts(_weight_of(layer).numel()) for name, layer in told.items()}
    for name, layer in told.items():
        _watch(layer, name, counts, counter)
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]), counter:
            # A copy, for the first layer may work in place.
            output = tried(inputs.requires_grad_(input_gradient).clone())
            forward = _multiply_adds(counter)
            if output.requires_grad:
                output.backward(torch.ones_like(output))
    except Exception as error:
        shape = tuple(inputs.shape)
        raise SettingsError(f"the model fails to train on a batch of {shape}: {error}") from error
    return StepCosts(
        forward // _BATCH, _multiply_adds(counter) // _BATCH, tuple(counts[name] for name in told)
    )


def _watch(
    layer: nn.Module, name: str, counts: dict[str, LayerCosts], counter: FlopCounterMode
) -> None:
    """Note what the layer's own calls take; each gradient of one takes as much as the call."""
    before = [0]

    def begin(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        before[0] = _multiply_adds(counter)

    def end(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        forward = (_multiply_adds(counter) - before[0]) // _BATCH
        known = counts[name]
        counts[name] = replace(
            known,
            forward=known.forward + forward,
            input_gradient=known.input_gradient + forward * inputs[0].requires_grad,
            weight_gradient=known.weight_gradient + forward * _weight_of(module).requires_grad,
        )

    layer.register_forward_pre_hook(begin)
    layer.register_forward_hook(end)


def _weight_of(layer: nn.Module) -> torch.Tensor:
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise SettingsError(f"a {type(layer).__name__} has no weight that could be sparse")
    return weight


def _multiply_adds(counter: FlopCounterMode) -> int:
    return int(counter.get_total_flops()) // 2


def _convolution_backward(
    gradient_shape: Any,
    input_shape: Any,
    weight_shape: Any,
    *arguments: Any,
    out_shape: Any = None,
    **options: Any,
) -> int:
    """Count two operations a multiply-add; either gradient takes as many as the forward pass."""
    transposed, mask = arguments[4], arguments[7]
    places = (input_shape if transposed else gradient_shape)[2:]
    products = math.prod((int(gradient_shape[0]), *places, *weight_shape))
    return 2 * products * (bool(mask[0]) + bool(mask[1]))
