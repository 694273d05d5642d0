"""Small server parts, batches for them, and comparisons of whole states, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from zerofl_flwr.model_arrays import Array

Batch = tuple[torch.Tensor, torch.Tensor]

CLASSES = 3


def small_server(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    """Build a server part with odd sizes, BatchNorm, and a frozen layer."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(27, 7),
            nn.Tanh(),
            nn.Linear(7, 5),
            nn.Linear(5, CLASSES),
        ).to(dtype)
    frozen = model[6]
    frozen.requires_grad_(False)
    return model


def batch(number: int, dtype: torch.dtype = torch.float64, samples: int = 6) -> Batch:
    """Draw the activations and labels of one batch."""
    generator = torch.Generator().manual_seed(number)
    activations = torch.randn(samples, 2, 3, 3, generator=generator, dtype=dtype)
    return activations, torch.randint(0, CLASSES, (samples,), generator=generator)


def same_bits(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Say whether two states hold the same arrays, where -0 is not 0 and NaN is itself."""
    return list(one) == list(other) and all(
        (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
        and array.tobytes() == other[name].tobytes()
        for name, array in one.items()
    )


def bits(values: torch.Tensor) -> Array:
    """Return float64 values as whole numbers, so that equal ones are the same bit by bit."""
    return values.numpy().view(np.int64).copy()
