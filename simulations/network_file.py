"""A network's arrays in one file that is replaced atomically: for plain torch, or for numpy."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch

from zerofl_flwr.atomic_file import replacing
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npz import save_npz

SUFFIXES = (".pt", ".npz")


def save_network(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays so that the name always holds a whole file, old or new.

    Parameters
    ----------
    path : Path
        Ends in ``.pt``, for a state_dict that ``torch.load(path, weights_only=True)`` reads; or in
        ``.npz``. Its folder is made where it is missing.
    arrays : mapping of str to ndarray
        By state_dict key.

    Raises
    ------
    SettingsError
        If the name ends otherwise.
    DataError
        If the file cannot be written.
    """
    check_suffix(path)
    try:
        if path.suffix == ".npz":
            save_npz(path, arrays)
        else:
            _save_state_dict(path, arrays)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from error


def check_suffix(path: Path) -> None:
    """Refuse a name that does not say which kind of file it is.

    Raises
    ------
    SettingsError
        Naming the two endings.
    """
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"{path} must end in {' or '.join(SUFFIXES)}, which say what it holds")


def _save_state_dict(path: Path, arrays: Mapping[str, Array]) -> None:
    content = BytesIO()
    torch.save({name: torch.tensor(array) for name, array in arrays.items()}, content)
    with replacing(path) as file:
        file.write(content.getbuffer())
