"""Encoded pictures as uint8 arrays of one size and channel count."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from zerofl_flwr.errors import DataError

_GREY_MODES = frozenset({"1", "L", "LA", "La"})


def open_picture(cell: Mapping[str, Any] | bytes | None, row: int) -> Image.Image:
    """Open one encoded picture; its pixels are not decoded yet.

    Parameters
    ----------
    cell : mapping with ``bytes`` or ``path``, or bytes
        An encoded file, such as png or jpeg.
    row : int
        Number of the row, for messages.

    Returns
    -------
    PIL.Image.Image
        The opened picture.

    Raises
    ------
    DataError
        If there is no picture, or it cannot be read.
    """
    encoded = cell.get("bytes") if isinstance(cell, Mapping) else cell
    path = cell.get("path") if isinstance(cell, Mapping) else None
    source = path if encoded is None else io.BytesIO(encoded)
    if source is None:
        raise DataError(f"row {row}: there is no image")
    try:
        return Image.open(source)
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"row {row}: the image cannot be read ({error})") from error


def common_shape(cells: Iterable[Mapping[str, Any] | bytes | None]) -> tuple[int, int, int]:
    """Find the shape that all pictures share, from their headers.

    Parameters
    ----------
    cells : iterable
        As for `open_picture`.

    Returns
    -------
    tuple of int
        ``(channels, height, width)``: one channel if all are grey, else three.

    Raises
    ------
    DataError
        If there are no pictures, their sizes differ, or one has more than 8 bits a channel.
    """
    size: tuple[int, int] | None = None
    channels = 1
    for row, cell in enumerate(cells):
        picture = open_picture(cell, row)
        size = picture.size if size is None else size
        if picture.size != size:
            raise DataError(
                f"row {row}: the image is {picture.size[0]}x{picture.size[1]} pixels, "
                f"the first one {size[0]}x{size[1]}; all must have one size"
            )
        if picture.mode.startswith(("I", "F")):
            raise DataError(f"row {row}: the image has more than 8 bits a pixel ({picture.mode})")
        if picture.mode not in _GREY_MODES:
            channels = 3
    if size is None:
        raise DataError("there are no images")
    return channels, size[1], size[0]


def image_arrays(
    cells: Iterable[Mapping[str, Any] | bytes | None], channels: int, *, chunk: int = 1024
) -> Iterator[NDArray[np.uint8]]:
    """Decode pictures and yield them in chunks.

    Parameters
    ----------
    cells : iterable
        As for `open_picture`, all of one size.
    channels : {1, 3}
        Grey or red, green, blue; pictures in other modes are converted.
    chunk : int
        Pictures a chunk.

    Yields
    ------
    uint8 array (n, channels, height, width)
        ``n`` is `chunk`, less for the last.

    Raises
    ------
    DataError
        If one cannot be read.
    """
    mode = "L" if channels == 1 else "RGB"
    waiting: list[NDArray[np.uint8]] = []
    for row, cell in enumerate(cells):
        picture = open_picture(cell, row)
        try:
            pixels = np.asarray(picture.convert(mode), dtype=np.uint8)
        except OSError as error:
            raise DataError(f"row {row}: the image cannot be decoded ({error})") from error
        waiting.append(pixels[np.newaxis] if channels == 1 else pixels.transpose(2, 0, 1))
        if len(waiting) == chunk:
            yield np.stack(waiting)
            waiting = []
    if waiting:
        yield np.stack(waiting)
