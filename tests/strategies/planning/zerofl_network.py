"""A small network that ZeroFL's costs are worked out of by hand."""

from __future__ import annotations

import torch
from torch import nn

SHAPE, EQUAL = (1, 6, 6), (12, 12, 12)
# Convolutions of 6 x 6 x 9 x (1 x 4, 4 x 6), and linear layers; those in the middle train sparse.
FIRST, SECOND, THIRD, LAST = 36 * 9 * 4, 36 * 9 * 24, 216 * 8, 8 * 3


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.Flatten(),
            nn.Linear(216, 8),
            nn.Linear(8, 3),
        )
