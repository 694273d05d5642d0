"""What torch's SGD or Adam keeps from step to step, as named arrays and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from adasplit_flwr.adam_state import adam_arrays, load_adam
from zerofl_flwr.model_arrays import Array

_BUFFER = "momentum_buffer"  # as torch calls it


def optimizer_arrays(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, Array]:
    """Copy an optimizer's state.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        SGD or Adam.
    parameters : mapping of str to Parameter
        What it trains, by name.

    Returns
    -------
    dict of str to ndarray
        Of Adam both moments and the number of steps of each parameter, of SGD the momentum's
        buffers; nothing of a parameter that has had no gradient, or of SGD without momentum.
    """
    if isinstance(optimizer, torch.optim.Adam):
        return adam_arrays(optimizer, parameters)
    arrays: dict[str, Array] = {}
    for name, parameter in parameters.items():
        buffer = optimizer.state.get(parameter, {}).get(_BUFFER)
        if buffer is not None:
            arrays[f"{_BUFFER}/{name}"] = buffer.cpu().numpy().copy()
    return arrays


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    arrays: Mapping[str, Array],
) -> None:
    """Take back what :func:`optimizer_arrays` returned, found among other arrays.

    Raises
    ------
    KeyError
        If one of Adam's moments is missing.
    ValueError
        If an array has another shape than its parameter.
    """
    for name, parameter in parameters.items():
        for key in (f"{_BUFFER}/{name}", f"exp_avg/{name}", f"exp_avg_sq/{name}"):
            if key in arrays and arrays[key].shape != tuple(parameter.shape):
                raise ValueError(f"{key} has shape {arrays[key].shape}")
    if isinstance(optimizer, torch.optim.Adam):
        load_adam(optimizer, parameters, arrays)
        return
    optimizer.state.clear()
    for name, parameter in parameters.items():
        if f"{_BUFFER}/{name}" in arrays:
            buffer = torch.tensor(arrays[f"{_BUFFER}/{name}"]).to(parameter)
            optimizer.state[parameter] = {_BUFFER: buffer}
