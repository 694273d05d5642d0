"""What a client's batch must be for the server to learn from it; if it is not, its name is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from zerofl_flwr.errors import ClientFailedError


@contextmanager
def blamed_on(client: int) -> Iterator[None]:
    """Turn what torch, or a check, raises for a batch that does not fit into an error of a client.

    Raises
    ------
    ClientFailedError
        Naming the client and the reason.
    """
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ClientFailedError(
            f"client {client}: the server part does not take its batch: {error}"
        ) from error


def check_activations(activations: torch.Tensor, dtype: torch.dtype) -> None:
    """Refuse activations (n, ...) of another dtype than the server part's with a ValueError."""
    if activations.dtype is not dtype:
        raise ValueError(f"its activations are {activations.dtype}, the server part is {dtype}")


def check_labels(labels: torch.Tensor, activations: torch.Tensor) -> None:
    """Refuse labels that are not one whole number an activation with a ValueError."""
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"labels are whole numbers of shape (n,), not {labels.dtype} of {tuple(labels.shape)}"
        )
    if len(labels) == 0 or activations.shape[:1] != labels.shape:
        raise ValueError(
            f"activations of shape {tuple(activations.shape)} came with {len(labels)} labels"
        )


def finite_loss(client: int, loss: torch.Tensor) -> float:
    """Return a batch's loss as a number.

    Raises
    ------
    ClientFailedError
        If it is not finite.
    """
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ClientFailedError(f"client {client}: the loss of its batch is {value}")
    return value


def check_gradients(client: int, gradients: Sequence[torch.Tensor]) -> None:
    """Refuse gradients that Adam's moments cannot hold.

    Raises
    ------
    ClientFailedError
        If one is not finite, or too large to be squared in its dtype.
    """
    # The squares' sum is finite only if each of them is, and costs one look at each.
    flat = [gradient.reshape(-1) for gradient in gradients]
    if not math.isfinite(sum(float(torch.dot(values, values)) for values in flat)):
        raise ClientFailedError(
            f"client {client}: the gradient of its batch is not finite, or too large to be squared"
        )
