"""Try one part of a cut network on zeros, and say what is wrong with it."""

from __future__ import annotations

import copy

import torch
from torch import nn

from zerofl_flwr.errors import SettingsError


def first_float_parameter(part: nn.Module) -> nn.Parameter | None:
    """Return the parameter whose device and dtype stand for the whole part, if it has one."""
    return next((p for p in part.parameters() if p.is_floating_point()), None)


def try_client(client: nn.Module, sample_shape: tuple[int, ...]) -> torch.Tensor:
    """Run a copy of a client part on two samples of zeros.

    Parameters
    ----------
    client : nn.Module
        Maps samples to activations.
    sample_shape : tuple of int
        Shape of a sample, without the batch. The zeros have the dtype of the part's weights.

    Returns
    -------
    Tensor
        The activations, (2, ...), on the CPU.

    Raises
    ------
    SettingsError
        If the shape is none, or as for `try_part`.
    """
    if not _is_shape(sample_shape):
        raise SettingsError(
            f"sample_shape is {sample_shape!r}; it must be a tuple of whole numbers from 1"
        )
    example = first_float_parameter(client)
    dtype = torch.get_default_dtype() if example is None else example.dtype
    return try_part(client, "client", torch.zeros(2, *sample_shape, dtype=dtype))


def try_part(part: nn.Module, name: str, batch: torch.Tensor) -> torch.Tensor:
    """Run a copy of a part on a batch of two, in evaluation mode and on the CPU.

    The part itself and the global random state stay as they were.

    Parameters
    ----------
    part : nn.Module
        To be tried.
    name : str
        What messages call it: client, head or server.
    batch : Tensor
        (2, ...), on the CPU; not written into.

    Returns
    -------
    Tensor
        Float, (2, ...), of two dimensions or more.

    Raises
    ------
    SettingsError
        If the part fails or returns anything else.
    """
    where = f"the {name} of the split"
    given = f"a batch of shape {tuple(batch.shape)}"
    try:
        trial = copy.deepcopy(part).cpu().eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = trial(batch.clone())  # some layers write into what they are given
    except Exception as error:
        raise SettingsError(f"{where} fails on {given}: {error}") from error
    if not isinstance(output, torch.Tensor):
        raise SettingsError(
            f"{where} must return a tensor for {given}, it returned {type(output).__name__}"
        )
    if not output.is_floating_point():
        raise SettingsError(f"{where} must return floats for {given}, it returned {output.dtype}")
    if output.dim() < 2 or len(output) != 2 or output.numel() == 0:
        raise SettingsError(
            f"{where} must return one vector or more for each of the 2 samples in {given}, it "
            f"returned shape {tuple(output.shape)}"
        )
    return output


def _is_shape(value: object) -> bool:
    whole = isinstance(value, tuple) and all(type(size) is int and size > 0 for size in value)
    return whole and value != ()
