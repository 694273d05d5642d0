"""The masked server's state as named arrays, for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

_TABLE = "masks/"


def pack(
    masks: str, steps: int, tensors: Mapping[str, torch.Tensor], table: Mapping[str, Array]
) -> dict[str, Array]:
    """Copy a server's state into arrays.

    Parameters
    ----------
    masks : str
        Kind of the masks.
    steps : int
        Steps of the weights.
    tensors : mapping of str to Tensor
        Weights, moments, and what is not trained.
    table : mapping of str to ndarray
        The store's; gets the prefix ``masks/``.
    """
    return (
        {"masks": np.array(masks), "steps": np.array(steps, dtype=np.int64)}
        | {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        | {f"{_TABLE}{name}": column for name, column in table.items()}
    )


def table_in(state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the store's table out of a state, without its prefix."""
    return {
        name.removeprefix(_TABLE): array for name, array in state.items() if name.startswith(_TABLE)
    }


def check_state(
    state: Mapping[str, Array], tensors: Mapping[str, torch.Tensor], masks: str
) -> None:
    """Refuse a state of another server; the store's table is not looked at.

    Parameters
    ----------
    state : mapping of str to ndarray
        As :func:`pack` returned it.
    tensors : mapping of str to Tensor
        Those that it is to be loaded into.
    masks : str
        Kind of the server's masks.

    Raises
    ------
    SettingsError
        If the state is of another model, dtype or kind of masks.
    """
    expected = {"masks", "steps", *tensors}
    found = {name for name in state if not name.startswith(_TABLE)}
    if missing := expected - found:
        raise SettingsError(
            f"the state lacks {', '.join(sorted(missing))} of this server part: it was saved with "
            "another one"
        )
    if unknown := found - expected:
        raise SettingsError(
            f"the state holds {', '.join(sorted(unknown))}, which this server part does not have: "
            "it was saved with another one"
        )
    if str(state["masks"]) != masks:
        raise SettingsError(f"the state was saved with masks {state['masks']}, not with {masks}")
    for name, tensor in tensors.items():
        array, wanted = state[name], tensor.numpy()
        if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise SettingsError(
                f"{name} of the state has shape {array.shape} and dtype {array.dtype}; this server "
                f"part expects {wanted.shape} and {wanted.dtype}"
            )
