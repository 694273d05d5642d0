"""What the server may send back in AdaSplit (arXiv 2112.01637): gradients at the cut.

By default nothing comes back; ``server_gradient`` turns this on for picked clients. See
:mod:`adasplit_flwr.batch_payload` for the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adasplit_flwr.batch_payload import BatchPayload
from zerofl_flwr.payload import WireArray

_VALUES = "gradients"


def encode_gradients(
    batches: Sequence[tuple[int, NDArray[np.float32]]],
    *,
    server_round: int,
    precision: str = "float32",
) -> list[NDArray[Any]]:
    """Encode the gradients of one client's batches.

    Parameters
    ----------
    batches : sequence of (int, NDArray of float32, shape (n, *activation shape))
        Batch id, and the gradient of the server's loss by the activations of that batch.
    server_round : int
        Flower's round.
    precision : {"float32", "float16"}
        Type on the wire. float16 turns values below 3e-8 into zeros.

    Returns
    -------
    list of NDArray
        A payload.

    Raises
    ------
    PayloadError
        There is no batch; ids are out of range or occur twice; gradients are not float32, not
        finite, too large for `precision`, or of different shapes. The batch is named.
    SettingsError
        `precision` is unknown.
    """
    return _payload("server").write(batches, {}, server_round=server_round, precision=precision)


def blank_gradients(
    sizes: Sequence[int], activation_shape: tuple[int, ...], *, server_round: int
) -> list[NDArray[Any]]:
    """Return a payload of zeros as large as that of batches with so many samples is at most.

    It is that large where the gradients, in float32, travel densely. The zeros take no memory.
    """
    return _payload("server").blank(
        sizes, activation_shape, server_round=server_round, precision="float32"
    )


def decode_gradients(
    arrays: Sequence[WireArray],
    *,
    server_round: int,
    activation_shape: tuple[int, ...],
    batch_ids: Sequence[int],
    batch_sizes: Sequence[int],
    sender: str = "server",
) -> list[tuple[int, NDArray[np.float32]]]:
    """Check and decode what :func:`encode_gradients` wrote.

    Parameters
    ----------
    arrays : sequence of NDArray or bytes
        What came, each as an array or as the ``.npy`` bytes of one.
    server_round : int
        The round it has to be of.
    activation_shape : tuple of int
        Shape at the cut, without the batch.
    batch_ids : sequence of int
        The batches that were uploaded, in their order.
    batch_sizes : sequence of int
        How many samples each of them has.
    sender : str
        Who sent it.

    Returns
    -------
    list of (int, NDArray of float32)
        In the order of `batch_ids`; views of one stacked array, which may be read-only.

    Raises
    ------
    PayloadError
        Naming the sender, the entry, and the field at fault.
    """
    payload = _payload(sender)
    stacked = payload.read(
        arrays,
        server_round=server_round,
        sample_shape=activation_shape,
        batch_ids=batch_ids,
        max_batch_size=max(batch_sizes, default=0),
        max_samples=sum(batch_sizes),
    )
    for batch_id, expected, came in zip(batch_ids, batch_sizes, stacked.sizes, strict=True):
        if came != expected:
            reason = f"batch {batch_id}: {expected} samples expected, {came} came"
            raise payload.refuse("batch-sizes", "data", reason)
    return list(zip(map(int, batch_ids), stacked.split(stacked.values), strict=True))


def _payload(sender: str) -> BatchPayload:
    return BatchPayload(_VALUES, sender, {})
