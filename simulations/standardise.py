"""Mean and standard deviation of image channels, and images put on that scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 4096


def channel_statistics(
    read: Callable[[NDArray[np.int64]], NDArray[Any]], rows: NDArray[np.int64]
) -> tuple[list[float], list[float]]:
    """Compute mean and standard deviation of each channel over some rows, in two passes.

    Parameters
    ----------
    read : callable
        Returns the images (n, C, H, W) of given rows; called for a few thousand at a time.
    rows : int64 array (N,)
        At least one row.

    Returns
    -------
    tuple of two lists of C floats
        Means and deviations. A channel without any variation has deviation 1, so that it is only
        centred.
    """
    parts = [rows[start : start + _CHUNK] for start in range(0, rows.size, _CHUNK)]
    pixels = rows.size * math.prod(read(rows[:1]).shape[2:])
    mean = sum(read(part).sum(axis=(0, 2, 3), dtype=np.float64) for part in parts) / pixels
    centre = np.asarray(mean).reshape(1, -1, 1, 1)
    squares = sum(((read(part) - centre) ** 2).sum(axis=(0, 2, 3)) for part in parts)
    std = np.sqrt(np.asarray(squares) / pixels)
    return np.asarray(mean).tolist(), np.where(std > 0, std, 1.0).tolist()


def standardised(
    images: NDArray[np.float32], mean: NDArray[np.float32], std: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Subtract means and divide by standard deviations, channel by channel.

    Parameters
    ----------
    images : float32 array (n, C, H, W)
        Images.
    mean, std : float32 array (1, C) or (n, C)
        The same for all images, or one row for each.

    Returns
    -------
    float32 array (n, C, H, W)
        The images on the new scale.
    """
    scaled: NDArray[np.float32] = (images - mean[..., np.newaxis, np.newaxis]) / std[
        ..., np.newaxis, np.newaxis
    ]
    return scaled
