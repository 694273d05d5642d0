"""An independent reference of SWAT by masked autograd in float64, and layers to try it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from zerofl_flwr.sparsify import sparsify
from zerofl_flwr.swat import SparseLayer, SparseLinear

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(7, 5), (4, 7)),
    "linear without bias": (lambda: nn.Linear(7, 5, bias=False), (4, 7)),
    "linear, 3-D input": (lambda: nn.Linear(7, 5), (2, 3, 7)),
    "linear, 1-D input": (lambda: nn.Linear(7, 5), (7,)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 9)),
    "conv1d, same, even kernel": (lambda: nn.Conv1d(3, 4, 4, padding="same"), (2, 3, 9)),
    "conv1d, batchless": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 5)),
    "conv2d, strides": (lambda: nn.Conv2d(3, 4, 3, stride=(2, 1), padding=(0, 2)), (2, 3, 7, 6)),
    "conv2d, dilated groups": (
        lambda: nn.Conv2d(4, 6, (3, 2), dilation=2, groups=2, bias=False),
        (2, 4, 7, 6),
    ),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 5, 5)),
    "conv2d, same": (
        lambda: nn.Conv2d(3, 4, (3, 4), padding="same", dilation=(1, 3)),
        (2, 3, 6, 7),
    ),
    "conv2d, valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid"), (2, 3, 6, 5)),
    "conv2d, reflect": (
        lambda: nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="reflect"),
        (2, 3, 6, 5),
    ),
    "conv2d, circular": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        (2, 3, 6, 5),
    ),
    "conv2d, replicate, same": (
        lambda: nn.Conv2d(3, 4, 4, padding="same", padding_mode="replicate"),
        (2, 3, 6, 5),
    ),
    "conv2d, batchless": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, (2, 3, 2), stride=(1, 2, 1), padding=1), (2, 2, 4, 5, 3)),
    "conv3d, same": (lambda: nn.Conv3d(2, 3, 2, padding="same"), (2, 2, 4, 3, 3)),
}
PAIRS = [
    ("0.7", "0.7", "0"),
    ("0.95", "0.5", "0"),
    ("0.6", "0", "0.8"),
    ("0", "0.7", "0"),
    ("0.5", "0.9", "0.5"),
]


def keep_top(values: torch.Tensor, sparsity: str) -> torch.Tensor:
    """Zero all but the top by sorting; counts in thousandths, so no rounding can slip in."""
    drop_thousandths = round(1000 * float(sparsity))
    k = -(-(1000 - drop_thousandths) * values.numel() // 1000)
    order = values.detach().abs().flatten().argsort(descending=True, stable=True)
    mask = torch.zeros(values.numel(), dtype=torch.bool)
    mask[order[:k]] = True
    return values.detach() * mask.view(values.shape)


def plain_function(layer: nn.Module) -> Callable[..., torch.Tensor]:
    """Return the layer's function of activations, weight and bias, without its padding mode."""
    if isinstance(layer, nn.Linear):
        return F.linear
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    function: Any = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[layer.weight.dim()]
    padding = layer.padding if layer.padding_mode == "zeros" else 0
    return lambda a, w, b: function(a, w, b, layer.stride, padding, layer.dilation, layer.groups)


def reference(
    layer: Any, activations: torch.Tensor, gradient: torch.Tensor, sparsities: tuple[str, str, str]
) -> tuple[torch.Tensor, ...]:
    """Compute output and gradients of input, weight and bias from their definitions."""
    function = plain_function(layer)
    outer = activations.detach().requires_grad_()
    padded = outer
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        padded = F.pad(outer, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
    masked_weight = keep_top(layer.weight, sparsities[0])
    bias = None if layer.bias is None else layer.bias.detach().requires_grad_()
    output = function(padded, masked_weight, bias)
    masked_gradient = keep_top(gradient, sparsities[2])
    (input_gradient,) = torch.autograd.grad(output, outer, masked_gradient, retain_graph=True)
    weight = layer.weight.detach().requires_grad_()
    against = function(keep_top(padded, sparsities[1]), weight, None)
    (weight_gradient,) = torch.autograd.grad(against, weight, masked_gradient)
    found = [output.detach(), input_gradient, weight_gradient]
    if bias is not None:
        found.extend(torch.autograd.grad(output, bias, gradient))
    return tuple(found)


def make_sparse(layer: nn.Module, *sparsities: str, period: int = 1) -> SparseLayer:
    weights, activations, gradients = sparsities
    sparsify(
        layer,
        weights,
        activation_sparsity=activations,
        gradient_sparsity=gradients,
        topk_period=period,
        masked=[""],
    )
    assert isinstance(layer, SparseLayer)
    return layer


def run(layer: Any, activations: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return output and gradients of input, weight and bias of a layer."""
    inputs = activations.detach().requires_grad_()
    output = layer(inputs)
    wanted = [inputs, layer.weight] + ([] if layer.bias is None else [layer.bias])
    return (output.detach(), *torch.autograd.grad(output, wanted, gradient))


def a_linear(*sparsities: str, period: int = 1) -> SparseLinear:
    torch.manual_seed(0)
    layer = make_sparse(nn.Linear(6, 5).double(), *sparsities, period=period)
    assert isinstance(layer, SparseLinear)
    return layer


def batch(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)
