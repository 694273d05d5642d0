"""A torch model as the list of numpy arrays that Flower sends, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import TensorSpec

Array = NDArray[Any]


def array_names(model: nn.Module) -> list[str]:
    """Return the names of the model's arrays: its state_dict keys, in order."""
    return list(model.state_dict())


def get_arrays(model: nn.Module) -> list[Array]:
    """Copy the model's state into numpy arrays, in state_dict order.

    Raises
    ------
    PayloadError
        If a tensor has a type that numpy lacks, such as bfloat16.
    """
    arrays = []
    for name, tensor in model.state_dict().items():
        _numpy_dtype(name, tensor)
        arrays.append(tensor.detach().cpu().numpy().copy())
    return arrays


def get_specs(model: nn.Module) -> list[TensorSpec]:
    """Return shape and dtype of each array of :func:`get_arrays`, without copying anything.

    Raises
    ------
    PayloadError
        As :func:`get_arrays`.
    """
    return [
        TensorSpec(tuple(tensor.shape), _numpy_dtype(name, tensor))
        for name, tensor in model.state_dict().items()
    ]


def set_arrays(model: nn.Module, arrays: Sequence[Array], *, sender: str = "server") -> None:
    """Load arrays, in state_dict order, into the model.

    Raises
    ------
    PayloadError
        If their number, a shape or a dtype is not the model's; the model is then unchanged.
    """
    state = model.state_dict()
    if len(arrays) != len(state):
        raise PayloadError(
            f"expected {len(state)} arrays for this model, got {len(arrays)}", sender=sender
        )
    for (name, tensor), array in zip(state.items(), arrays, strict=True):
        if tuple(tensor.shape) != array.shape:
            raise PayloadError(
                f"expected shape {tuple(tensor.shape)}, got {array.shape}",
                sender=sender,
                layer=name,
                field="shape",
            )
        expected = _numpy_dtype(name, tensor)
        if not np.can_cast(array.dtype, expected, "same_kind"):
            raise PayloadError(
                f"cannot load {array.dtype} into {expected}",
                sender=sender,
                layer=name,
                field="dtype",
            )
    for tensor, array in zip(state.values(), arrays, strict=True):
        _load(tensor, array)


def _load(tensor: torch.Tensor, array: Array) -> None:
    """Write an array into a tensor of state_dict's, in a single copy where numpy can reach it."""
    if tensor.device.type != "cpu":
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.require(array, requirements=["C", "W"])))
        return
    # Not copy_ of from_numpy: torch warns of read-only arrays, which all those of a message are.
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(tensor.numpy(), array, casting="same_kind")
    if not tensor.is_inference():  # which has no version
        torch.autograd.graph.increment_version(tensor)


def _numpy_dtype(name: str, tensor: torch.Tensor) -> np.dtype[Any]:
    try:
        return np.dtype(str(tensor.dtype).removeprefix("torch."))
    except TypeError:
        raise PayloadError(
            f"{tensor.dtype} has no numpy type; keep the shared weights in float32 or float16",
            layer=name,
            field="dtype",
        ) from None
