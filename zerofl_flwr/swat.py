"""Layers that train sparse as SWAT does (ZeroFL paper, section 3): convolutions and linear.

Forward uses the top-K of the weights and all of the activations. Backward uses the same weights for
the gradient of the input, and the top-K of the activations (over the whole tensor of the batch) for
the gradient of the weights, which is dense: every weight keeps learning, and the pattern can move.
Evaluation uses the top-K of the weights too. Biases are never masked.

This is the reference: masked dense operations, right for every device and floating dtype. Under
activation checkpointing, which runs a layer twice, choose ``topk_period=1``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from torch.autograd.function import Function, FunctionCtx, once_differentiable
from torch.nn import functional as F

from zerofl_flwr.periodic_topk import Nonzeros, Timing
from zerofl_flwr.swat_operations import ConvolutionOperation, LinearOperation, Operation
from zerofl_flwr.swat_state import LayerState


class SwatStep(Function):
    """One layer's pass; keeps no dense activation for the backward pass unless asked to."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        activations: torch.Tensor,
        weight: torch.Tensor,
        masked_weight: torch.Tensor,
        bias: torch.Tensor | None,
        frozen: torch.Tensor | None,
        operation: Operation,
        state: LayerState,
        timing: Timing,
    ) -> torch.Tensor:
        """Compute ``f(a, topK(w)) + b`` and save topK(w) and the non-zeros of topK(a)."""
        step = cast(Any, ctx)
        step.operation, step.state, step.timing = operation, state, timing
        step.shape, step.weight_dtype, step.weight_shape = (
            activations.shape,
            weight.dtype,
            weight.shape,
        )
        saved: tuple[torch.Tensor, ...] = ()
        if step.needs_input_grad[1]:
            if state.activations.sparsity:
                kept = state.activations.nonzeros(activations, timing)
                saved = (kept.values, kept.positions)
            else:
                saved = (activations,)
        used_later = masked_weight if step.needs_input_grad[0] else None
        step.save_for_backward(used_later, frozen, *saved)
        return operation.forward(activations, masked_weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of input, weight and bias; the weight's is dense."""
        step = cast(Any, ctx)
        masked_weight, frozen, *saved = step.saved_tensors
        needs_input, needs_weight, _, needs_bias = step.needs_input_grad[:4]
        bias_gradient = step.operation.bias_gradient(gradient) if needs_bias else None
        input_gradient = weight_gradient = None
        if needs_input or needs_weight:
            if masked_weight is None:  # only its shape is read
                masked_weight = gradient.new_zeros(()).expand(step.weight_shape)
            activations = saved[0] if saved else None
            if len(saved) == 2:
                activations = Nonzeros(saved[0], saved[1], step.shape).to_dense()
            input_gradient, weight_gradient = step.operation.gradients(
                step.state.gradients.dense(gradient, step.timing),
                activations,
                step.shape,
                masked_weight,
                (needs_input, needs_weight),
            )
        if weight_gradient is not None:
            weight_gradient = weight_gradient.to(step.weight_dtype)
            if frozen is not None:
                weight_gradient = weight_gradient.masked_fill(~frozen, 0)
        return input_gradient, weight_gradient, None, bias_gradient, None, None, None, None


class SparseLayer(nn.Module):
    """What the sparse layers share. Made by :func:`zerofl_flwr.sparsify`, never constructed.

    Attributes
    ----------
    swat : LayerState
        Sparsities, period, thresholds.
    frozen_mask : Tensor of bool or None, shape of the weight
        Used in place of the top-K of the weights if set. Moves with the module, and is no part of
        its state_dict.
    """

    plain_type: ClassVar[type[nn.Module]]
    swat: LayerState
    frozen_mask: torch.Tensor | None
    weight: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Apply the layer; see the module's docstring.

        Parameters
        ----------
        input : Tensor
            As for the plain layer.

        Returns
        -------
        Tensor
            As for the plain layer; the very same if all sparsities are 0 and no mask is frozen.

        Raises
        ------
        SelectionError
            If NaN turns up among the weights or activations (in the backward pass: among the output
            gradients). The message names the layer.
        """
        state = self.swat
        if self.frozen_mask is None and not (
            state.weights.sparsity or state.activations.sparsity or state.gradients.sparsity
        ):
            return cast(torch.Tensor, super().forward(input))
        if not torch.is_grad_enabled():
            exact = state.masked_weight(self.weight, self.frozen_mask, Timing.EXACT)
            return self._apply_dense(input, exact)
        timing = state.next_timing(self.training)
        return self._apply_sparse(
            input, state.masked_weight(self.weight, self.frozen_mask, timing), timing
        )

    def train(self, mode: bool = True) -> Self:
        """Set the mode; switching training on starts with fresh thresholds."""
        if mode:
            self.swat.restart()
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """Return the plain layer's line with the sparsity added."""
        return f"{super().extra_repr()}, sparsity={self.swat.weights.sparsity}"

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.swat.restart()

    def _apply_dense(self, activations: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _apply_sparse(
        self, activations: torch.Tensor, masked_weight: torch.Tensor, timing: Timing
    ) -> torch.Tensor:
        raise NotImplementedError

    def _step(
        self,
        activations: torch.Tensor,
        masked_weight: torch.Tensor,
        operation: Operation,
        timing: Timing,
    ) -> torch.Tensor:
        bias = cast("torch.Tensor | None", self.bias)
        device = activations.device.type
        if torch.is_autocast_enabled(device):  # which does not reach into autograd functions
            dtype = torch.get_autocast_dtype(device)
            activations, masked_weight = activations.to(dtype), masked_weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        apply = cast(Callable[..., torch.Tensor], SwatStep.apply)
        return apply(
            activations,
            self.weight,
            masked_weight,
            bias,
            self.frozen_mask,
            operation,
            self.swat,
            timing,
        )


class SparseLinear(SparseLayer, nn.Linear):
    """``nn.Linear`` with SWAT's sparse training."""

    plain_type = nn.Linear

    def _apply_dense(self, activations: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(activations, weight, self.bias)

    def _apply_sparse(
        self, activations: torch.Tensor, masked_weight: torch.Tensor, timing: Timing
    ) -> torch.Tensor:
        return self._step(activations, masked_weight, LinearOperation(), timing)


class _SparseConvolution(SparseLayer):
    def _apply_dense(self, activations: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        layer = cast(nn.Conv2d, self)
        return cast(torch.Tensor, layer._conv_forward(activations, weight, layer.bias))

    def _apply_sparse(
        self, activations: torch.Tensor, masked_weight: torch.Tensor, timing: Timing
    ) -> torch.Tensor:
        layer = cast(nn.Conv2d, self)
        operation, border = ConvolutionOperation.of(layer)
        if border:
            activations = F.pad(activations, border, mode=layer.padding_mode)
        batchless = activations.dim() == len(layer.kernel_size) + 1
        if batchless:
            activations = activations.unsqueeze(0)
        output = self._step(activations, masked_weight, operation, timing)
        return output.squeeze(0) if batchless else output


class SparseConv1d(_SparseConvolution, nn.Conv1d):
    """``nn.Conv1d`` with SWAT's sparse training."""

    plain_type = nn.Conv1d


class SparseConv2d(_SparseConvolution, nn.Conv2d):
    """``nn.Conv2d`` with SWAT's sparse training."""

    plain_type = nn.Conv2d


class SparseConv3d(_SparseConvolution, nn.Conv3d):
    """``nn.Conv3d`` with SWAT's sparse training."""

    plain_type = nn.Conv3d


SPARSE_TYPES: dict[type[nn.Module], type[SparseLayer]] = {
    sparse.plain_type: sparse for sparse in (SparseConv1d, SparseConv2d, SparseConv3d, SparseLinear)
}
"""The sparse layer for each plain layer type."""


def sparse_layers(model: nn.Module, every_name: bool = False) -> dict[str, SparseLayer]:
    """Find the sparse layers of a model.

    Parameters
    ----------
    model : nn.Module
        Any model.
    every_name : bool
        List a layer that appears in several places under each of its names, not just the first.

    Returns
    -------
    dict of str to SparseLayer
        By qualified name, in order of registration.
    """
    modules = model.named_modules(remove_duplicate=not every_name)
    return {name: module for name, module in modules if isinstance(module, SparseLayer)}
