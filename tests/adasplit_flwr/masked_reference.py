"""The masked server's training said plainly: autograd on leaves, torch's Adam, one step at a time.

Nothing is shared with the implementation; masks come from outside.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call


class Reference:
    """Soft masks: one torch.optim.Adam for the weights, and one for each client's mask."""

    def __init__(
        self,
        model: nn.Module,
        masks: dict[int, torch.Tensor],
        *,
        penalty: float,
        lr: float,
        wd: float,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.weights = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        self.masks: dict[int, dict[str, torch.Tensor]] = {}
        for client, mask in masks.items():
            self.masks[client], start = {}, 0
            for name, weight in self.weights.items():
                part = mask[start : start + weight.numel()].view(weight.shape)
                self.masks[client][name] = part.clone().requires_grad_()
                start += weight.numel()
        self.penalty = penalty
        self.adam = torch.optim.Adam(self.weights.values(), lr=lr, weight_decay=wd)
        self.mask_adams = {
            client: torch.optim.Adam(parts.values(), lr=lr, weight_decay=wd)
            for client, parts in self.masks.items()
        }

    def step(self, client: int, activations: torch.Tensor, labels: torch.Tensor) -> float:
        masks = self.masks[client]
        effective = {name: w * torch.sigmoid(masks[name]) for name, w in self.weights.items()}
        self.model.train()
        logits = functional_call(self.model, effective, (activations,))
        cross_entropy = nn.functional.cross_entropy(logits, labels)
        norm = torch.stack([torch.sigmoid(mask).sum() for mask in masks.values()]).sum()
        self.adam.zero_grad()
        self.mask_adams[client].zero_grad()
        (cross_entropy + self.penalty * norm).backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        self.mask_adams[client].step()
        return float(cross_entropy.detach())

    def mask(self, client: int) -> torch.Tensor:
        return torch.cat([part.detach().flatten() for part in self.masks[client].values()])

    def moments(self, client: int | None, which: str) -> torch.Tensor:
        """Return a moment of the weights (None) or of a client's mask, as one vector."""
        adam = self.adam if client is None else self.mask_adams[client]
        leaves = self.weights if client is None else self.masks[client]
        return torch.cat([adam.state[leaf][which].flatten() for leaf in leaves.values()])


class HardReference:
    """Hard masks in one vector: only what is kept is taken out, stepped, and put back.

    `weights` and each of `masks` have the rows value, first moment and second moment.
    """

    def __init__(
        self,
        model: nn.Module,
        masks: dict[int, torch.Tensor],
        *,
        penalty: float,
        lr: float,
        wd: float,
    ) -> None:
        self.model = copy.deepcopy(model)
        self.parameters = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        flat = torch.cat([p.detach().flatten() for p in self.parameters.values()])
        self.weights = torch.stack([flat, torch.zeros_like(flat), torch.zeros_like(flat)])
        self.masks = {
            client: torch.stack([mask, torch.zeros_like(mask), torch.zeros_like(mask)])
            for client, mask in masks.items()
        }
        self.steps = 0
        self.mask_steps = dict.fromkeys(masks, 0)
        self.penalty, self.lr, self.wd = penalty, lr, wd

    def step(self, client: int, activations: torch.Tensor, labels: torch.Tensor) -> float:
        mask = self.masks[client][0]
        kept = mask > 0
        effective = (self.weights[0] * kept).requires_grad_()
        parts, start = {}, 0
        for name, parameter in self.parameters.items():
            part = effective[start : start + parameter.numel()]
            parts[name], start = part.view(parameter.shape), start + parameter.numel()
        self.model.train()
        logits = functional_call(self.model, parts, (activations,))
        loss = nn.functional.cross_entropy(logits, labels)
        [gradient] = torch.autograd.grad(loss, [effective])
        soft = torch.sigmoid(mask)
        mask_gradient = (gradient * self.weights[0] + self.penalty) * soft * (1 - soft)
        self.steps += 1
        self.mask_steps[client] += 1
        self.weights[:, kept] = self.adam(self.weights[:, kept], gradient[kept], self.steps)
        self.masks[client] = self.adam(self.masks[client], mask_gradient, self.mask_steps[client])
        return float(loss.detach())

    def adam(self, rows: torch.Tensor, gradient: torch.Tensor, step: int) -> torch.Tensor:
        value, mean, square = rows
        gradient = gradient + self.wd * value
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        size = (square / (1 - 0.999**step)).sqrt() + 1e-8
        return torch.stack([value - self.lr * mean / (1 - 0.9**step) / size, mean, square])
