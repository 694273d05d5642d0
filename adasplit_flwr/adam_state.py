"""The state of torch's Adam as arrays that are named after the parameters, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import TensorSpec

_MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch calls them
_STEPS = "steps"


def adam_arrays(adam: torch.optim.Adam, parameters: Mapping[str, nn.Parameter]) -> dict[str, Array]:
    """Copy an Adam's state.

    Parameters
    ----------
    adam : torch.optim.Adam
        The optimizer.
    parameters : mapping of str to Parameter
        What it trains, by name.

    Returns
    -------
    dict of str to ndarray
        ``exp_avg/<name>``, ``exp_avg_sq/<name>``, and ``steps/<name>``, one int64, of each
        parameter that has had a gradient; the others have no state.
    """
    arrays: dict[str, Array] = {}
    for name, parameter in parameters.items():
        if record := adam.state.get(parameter):
            for moment in _MOMENTS:
                arrays[f"{moment}/{name}"] = record[moment].cpu().numpy().copy()
            arrays[f"{_STEPS}/{name}"] = np.array(int(record["step"]), np.int64)
    return arrays


def adam_specs(
    arrays: Mapping[str, Array], parameters: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """Return what a state must hold, of which ``steps/<name>`` says what parameters it has.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The state, among other arrays.
    parameters : mapping of str to TensorSpec
        What Adam trains.
    """
    specs: dict[str, TensorSpec] = {}
    for name, spec in parameters.items():
        if f"{_STEPS}/{name}" in arrays:
            specs |= {f"{moment}/{name}": spec for moment in _MOMENTS}
            specs[f"{_STEPS}/{name}"] = TensorSpec((), np.dtype(np.int64))
    return specs


def load_adam(
    adam: torch.optim.Adam,
    parameters: Mapping[str, nn.Parameter],
    arrays: Mapping[str, Array],
) -> None:
    """Take back what :func:`adam_arrays` returned.

    Parameters
    ----------
    adam : torch.optim.Adam
        The optimizer; what it had is forgotten.
    parameters : mapping of str to Parameter
        What it trains.
    arrays : mapping of str to ndarray
        As :func:`adam_specs` describes them, among others; they are copied.
    """
    adam.state.clear()
    for name, parameter in parameters.items():
        if f"{_STEPS}/{name}" in arrays:
            adam.state[parameter] = {
                "step": torch.tensor(float(arrays[f"{_STEPS}/{name}"])),
                **{m: torch.tensor(arrays[f"{m}/{name}"]).to(parameter) for m in _MOMENTS},
            }
