"""Networks of a user's own, as package.module:function names them."""

from __future__ import annotations

import torch
from torch import nn


def normed(num_classes: int, in_channels: int) -> nn.Module:
    """Return a network with running statistics on both sides of its cut, and nameless children."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, num_classes),
    )


def tagged(num_classes: int, in_channels: int) -> nn.Module:
    """Return a sequence that has an array beside its children's, which neither part gets."""
    net = nn.Sequential(
        nn.Conv2d(in_channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, num_classes)
    )
    net.register_buffer("tag", torch.ones(1))
    return net
