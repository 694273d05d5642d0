"""Bring decoded images to a common size and number of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import DataError

# ITU-R 601 luma of red, green and blue in parts of 2**16, which is what PIL's mode L is.
_LUMA = np.array([19595, 38470, 7471], dtype=np.uint32)
_HALF = 2**15


def conformed_shape(
    images: NDArray[Any], size: int | None, channels: int | None
) -> tuple[int, int, int]:
    """Say which shape `conform` gives, or refuse what it cannot do.

    Parameters
    ----------
    images : uint8 or, for recordings, float32 array (N, C, H, W)
        Decoded images; only type and shape matter.
    size, channels : int, optional
        As for `conform`.

    Returns
    -------
    tuple of int
        ``(channels, height, width)``.

    Raises
    ------
    DataError
        If the images are larger than asked for, or those of recordings would get a border.
    """
    own_channels, height, width = images.shape[1:]
    if size is not None and max(height, width) > size:
        raise DataError(
            f"image_size is {size}, but the images are {height}x{width} pixels; smaller ones get "
            "a border, larger ones are not shrunk"
        )
    if size is not None and images.dtype.kind == "f" and (height, width) != (size, size):
        raise DataError(
            f"image_size is {size}, but recordings make images of {height}x{width}, which get no "
            "border: it would not be silence"
        )
    return channels or own_channels, size or height, size or width


def conform(images: NDArray[Any], size: int | None, channels: int | None) -> NDArray[Any]:
    """Give images a black border, and make them grey or coloured.

    Parameters
    ----------
    images : uint8 or float32 array (n, C, H, W)
        Of one channel or three.
    size : int, optional
        Wanted height and width. Where the border is odd, the lower and right side get more.
    channels : {1, 3}, optional
        A single channel is repeated; of three, the luma is taken.

    Returns
    -------
    array (n, channels, size, size)
        Of the same type; the same object where there is nothing to do.
    """
    if channels == 1 and images.shape[1] == 3:
        weighted = np.tensordot(images, _LUMA, axes=([1], [0]))
        images = ((weighted + _HALF) >> 16).astype(images.dtype)[:, np.newaxis]
    elif channels == 3 and images.shape[1] == 1:
        images = np.repeat(images, 3, axis=1)
    if size is None or images.shape[2:] == (size, size):
        return images
    sides = [((size - own) // 2, (size - own + 1) // 2) for own in images.shape[2:]]
    return np.pad(images, [(0, 0), (0, 0), *sides])
