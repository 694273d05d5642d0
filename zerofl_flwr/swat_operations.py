"""The dense arithmetic under the sparse layers: convolution and linear, forward and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F


class Operation(Protocol):
    """A layer's arithmetic, given its masked tensors."""

    def forward(
        self, activations: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the layer's output."""
        ...

    def gradients(
        self,
        gradient: torch.Tensor,
        activations: torch.Tensor | None,
        shape: Sequence[int],
        weight: torch.Tensor,
        needed: tuple[bool, bool],
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the gradients of input and weight, each only if needed.

        Parameters
        ----------
        gradient : Tensor, shape of the output
            Output gradient.
        activations : Tensor or None, ``shape``
            What the weight gradient is taken against; None if that is not needed.
        shape : sequence of int
            Shape of the input.
        weight : Tensor, shape of the layer's weight
            What the input gradient is taken against.
        needed : (bool, bool)
            Whether the input gradient and the weight gradient are wanted.
        """
        ...

    def bias_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the bias gradient, shape (out,), from the output gradient."""
        ...


@dataclass(frozen=True)
class LinearOperation:
    """``y = a w^T + b`` over the last dimension."""

    def forward(
        self, activations: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the output, shape (..., out)."""
        return F.linear(activations, weight, bias)

    def gradients(
        self,
        gradient: torch.Tensor,
        activations: torch.Tensor | None,
        shape: Sequence[int],
        weight: torch.Tensor,
        needed: tuple[bool, bool],
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the gradients of input and weight; see :class:`Operation`."""
        rows = gradient.reshape(-1, weight.shape[0])
        input_gradient = (rows @ weight).reshape(shape) if needed[0] else None
        weight_gradient = None
        if needed[1] and activations is not None:
            weight_gradient = rows.t() @ activations.reshape(-1, weight.shape[1])
        return input_gradient, weight_gradient

    def bias_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the sum over all dimensions but the last."""
        return gradient.reshape(-1, gradient.shape[-1]).sum(0)


@dataclass(frozen=True)
class ConvolutionOperation:
    """A convolution over any number of dimensions; all sequences run over the spatial ones.

    Parameters
    ----------
    stride, padding, dilation : tuple of int
        As in torch; ``padding`` is zeros on both sides.
    groups : int
        As in torch.
    surplus : tuple of int
        How many outputs at the beginning do not belong to the result: ``padding="same"`` with an
        odd total pads one more at the end than at the beginning, which symmetric padding cannot.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    surplus: tuple[int, ...]

    @classmethod
    def of(cls, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> tuple[ConvolutionOperation, list[int]]:
        """Read a layer's geometry.

        Returns
        -------
        ConvolutionOperation
            The geometry.
        list of int
            What ``F.pad`` with the layer's padding mode must add to the input first; empty for
            padding with zeros.
        """
        none = (0,) * len(layer.kernel_size)
        padding: tuple[int, ...] = none
        surplus: tuple[int, ...] = none
        border: list[int] = []
        if layer.padding_mode != "zeros":
            border = list(layer._reversed_padding_repeated_twice)
        elif layer.padding == "same":
            spans = zip(layer.dilation, layer.kernel_size, strict=True)
            totals = [dilation * (size - 1) for dilation, size in spans]
            padding = tuple(total - total // 2 for total in totals)
            surplus = tuple(total % 2 for total in totals)
        elif not isinstance(layer.padding, str):  # the other string, "valid", means none
            padding = layer.padding
        return cls(layer.stride, padding, layer.dilation, layer.groups, surplus), border

    def forward(
        self, activations: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the output, shape (batch, out, ...)."""
        output: torch.Tensor = torch.ops.aten.convolution(
            activations,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            self.groups,
        )
        for dim, extra in enumerate(self.surplus, start=2):
            output = output.narrow(dim, extra, output.shape[dim] - extra) if extra else output
        return output

    def gradients(
        self,
        gradient: torch.Tensor,
        activations: torch.Tensor | None,
        shape: Sequence[int],
        weight: torch.Tensor,
        needed: tuple[bool, bool],
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the gradients of input and weight; see :class:`Operation`."""
        if any(self.surplus):  # the outputs left out had no influence: their gradient is zero
            gradient = F.pad(
                gradient, [side for extra in self.surplus[::-1] for side in (extra, 0)]
            )
        if activations is None:  # only its shape is read
            activations = gradient.new_zeros(()).expand(tuple(shape))
        input_gradient, weight_gradient, _ = torch.ops.aten.convolution_backward(
            gradient,
            activations,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            self.groups,
            [*needed, False],
        )
        return input_gradient, weight_gradient

    def bias_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the sum over batch and space."""
        return gradient.sum(dim=[0, *range(2, gradient.dim())])
