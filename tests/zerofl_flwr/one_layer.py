"""A linear layer and a squared loss, whose training is worked out by hand."""

from __future__ import annotations

import torch
from torch import nn


def line(weights: list[float]) -> nn.Linear:
    """Give a linear layer with one output and no bias."""
    layer = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weights]))
    return layer


def squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of the one output."""
    return ((outputs[:, 0] - labels) ** 2).mean()
