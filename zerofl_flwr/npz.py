"""Named arrays in one ``.npz`` file that is replaced atomically; no pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.atomic_file import replacing
from zerofl_flwr.errors import DataError

# What numpy and zipfile raise for files that are cut short, altered, or something else.
_DAMAGED = (
    OSError,
    ValueError,
    TypeError,
    EOFError,
    KeyError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def save_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an ``.npz`` file so that the name always holds a whole one, old or new.

    Parameters
    ----------
    path : Path
        The file; its folder is made where it is missing.
    arrays : mapping of str to NDArray
        What goes in, of any shapes, without objects.

    Raises
    ------
    ValueError
        An array holds objects. The file is then as it was.
    OSError
        The file cannot be written.
    """
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_npz(path: Path, *, what: str) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        What it should be, for the error, e.g. ``"checkpoint"``.

    Returns
    -------
    dict of str to NDArray
        In the order of the file.

    Raises
    ------
    FileNotFoundError
        There is no such file: only the caller knows whether that is a fault.
    DataError
        The file cannot be read as a whole, or holds objects.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise
    except _DAMAGED as error:
        raise DataError(f"the {what} {path} cannot be read: {error}") from error
