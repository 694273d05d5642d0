"""A file that is replaced atomically: its name holds the whole old content, or the whole new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, which takes the place of `path` at the end of the ``with`` block.

    Until then it is ``.NAME.partial`` beside it. If the block raises, `path` is as it was.

    Parameters
    ----------
    path : Path
        The file; its folder is made where it is missing.

    Yields
    ------
    BinaryIO
        What to write to.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One name, so that what a killed process left is overwritten and not collected.
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
