"""A client's mask over the server's parameters: how it starts, and what it makes of them.

AdaSplit, arXiv 2112.01637: each client has a mask of its own over all of the server part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.training import seed_of

MASKS = ("soft", "hard", "none")
"""Kinds of masks: ``W * sigmoid(m)``, ``W * [m > 0]``, and the parameters as they are."""


def check_masks(masks: str) -> str:
    """Return the kind of masks, or raise SettingsError naming the nearest that exists."""
    if masks not in MASKS:
        raise SettingsError(unknown_name("masks", masks, MASKS))
    return masks


def fresh_mask(client: int, *, length: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Draw the mask with which a client starts.

    Parameters
    ----------
    client : int
        Partition id.
    length : int
        Elements, one a trainable parameter of the server part.
    dtype : torch.dtype
        float32 or float64.
    seed : int
        Seed of the run.

    Returns
    -------
    Tensor, shape (length,)
        From N(0, 1); the same for the same seed, client, length and dtype. Torch's global generator
        is not touched.
    """
    precision = np.float64 if dtype is torch.float64 else np.float32
    generator = np.random.default_rng(seed_of(seed, client))
    return torch.from_numpy(generator.standard_normal(length, dtype=precision)).to(dtype)


@torch.no_grad()
def write_effective(
    masks: str,
    weights: Sequence[torch.Tensor],
    mask: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
) -> None:
    """Write the parameters as one client's mask lets them through, piece by piece.

    Parameters
    ----------
    masks : {"soft", "hard"}
        ``W * sigmoid(m)`` or ``W * [m > 0]``.
    weights, mask, out : sequences of Tensor
        Pieces of the parameters W, of the mask m, and of the memory to write to, of equal sizes.
    """
    for weight, real, effective in zip(weights, mask, out, strict=True):
        if masks == "soft":
            torch.sigmoid(real, out=effective).mul_(weight)
        else:
            torch.gt(real, 0, out=effective).mul_(weight)


def mask_density(masks: str, mask: torch.Tensor) -> float:
    """Return how much of the server part a mask lets through.

    Parameters
    ----------
    masks : {"soft", "hard"}
        The kind of the mask.
    mask : Tensor, shape (P,)
        A client's real-valued mask.

    Returns
    -------
    float
        In [0, 1]: the mean of sigmoid(m) for soft masks, the share of m > 0 for hard ones.
    """
    passed = torch.sigmoid(mask) if masks == "soft" else mask > 0
    return float(passed.mean(dtype=torch.float64))
