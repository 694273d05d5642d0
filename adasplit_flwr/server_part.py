"""The server's module as it computes with one client's effective weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.func import functional_call

from adasplit_flwr.buffers import buffers_restored
from adasplit_flwr.flat_parameters import FlatParameters
from adasplit_flwr.server_masks import write_effective
from zerofl_flwr.model_arrays import Array, array_names, get_arrays


class ServerPart:
    """A copy of the server's module, and memory for the effective weights that it computes with.

    The copy's own parameters are the weights W that all clients share; they are not touched when a
    mask is put on them. Nor is the module that came.

    Parameters
    ----------
    model : nn.Module
        The server part of the cut network (AdaSplit, arXiv 2112.01637).
    masks : {"soft", "hard", "none"}
        What masks do; with none, the effective weights are W itself.

    Attributes
    ----------
    weights : FlatParameters
        W, by name and as a vector.

    Raises
    ------
    SettingsError
        As :class:`FlatParameters`.
    """

    def __init__(self, model: nn.Module, masks: str) -> None:
        self._module = copy.deepcopy(model)
        self._module.zero_grad(set_to_none=True)
        for parameter in self._module.parameters():
            parameter.data = parameter.data.contiguous()  # in the order in which masks hold it
        self._masks = masks
        self.weights = FlatParameters(self._module)
        if masks == "none":
            effective = self.weights.tensors
        else:
            # A tensor each, and not parts of one: how a CPU adds up can depend on where a tensor
            # starts, and a client that loads the weights must compute the same.
            effective = [torch.empty_like(tensor) for tensor in self.weights.tensors]
        self._pieces = self.weights.pieces_of(effective)
        self._leaves = {
            name: tensor.detach().requires_grad_()
            for name, tensor in zip(self.weights.shapes, effective, strict=True)
        }

    def put_on(self, mask: torch.Tensor) -> None:
        """Compute with the weights that a mask, shape (P,), lets through, until the next call."""
        mask_pieces = self.weights.pieces(mask)
        write_effective(self._masks, self.weights.weight_pieces, mask_pieces, self._pieces)

    def __call__(self, activations: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Map activations (n, ...) to logits (n, classes) with the effective weights."""
        self._module.train(training)
        logits: torch.Tensor = functional_call(self._module, self._leaves, (activations,))
        return logits

    def gradients(
        self, loss: torch.Tensor, inputs: Sequence[torch.Tensor] = ()
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Differentiate a loss with respect to the effective weights, and to `inputs`.

        Returns
        -------
        (list of Tensor, list of Tensor)
            One a parameter, and one an input, in their shapes. What the loss does not depend on has
            gradient zero.
        """
        leaves = list(self._leaves.values())
        both = torch.autograd.grad(loss, [*leaves, *inputs], materialize_grads=True)
        return list(both[: len(leaves)]), list(both[len(leaves) :])

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copy the module's state, with effective weights, in the order of its state_dict."""
        # By identity: two names may share a parameter, and the leaves have it once.
        effective = {
            id(parameter): self._leaves[name]
            for name, parameter in self._module.named_parameters()
            if name in self._leaves
        }
        return {
            name: effective.get(id(tensor), tensor).detach().clone()
            for name, tensor in self._module.state_dict(keep_vars=True).items()
        }

    def shared_state(self) -> dict[str, Array]:
        """Copy the module's state, with W itself, in the order of its state_dict."""
        return dict(zip(array_names(self._module), get_arrays(self._module), strict=True))

    def untrained_state(self) -> dict[str, torch.Tensor]:
        """Return what state_dict holds besides W: buffers and frozen parameters; no copies."""
        trained = {id(p) for p in self._module.parameters() if p.requires_grad}
        return {
            name: tensor.detach()
            for name, tensor in self._module.state_dict(keep_vars=True).items()
            if id(tensor) not in trained
        }

    def buffers_restored_on_error(self) -> AbstractContextManager[None]:
        """Put the buffers, such as BatchNorm's statistics, back when what is inside raises."""
        return buffers_restored(self._module, only_on_error=True)
