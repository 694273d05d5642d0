"""What a picked client uploads in AdaSplit (arXiv 2112.01637): activations and labels.

The activations are those of the client's own training step, detached. They travel densely, or as
CSR where their exact zeros make that smaller: behind a ReLU, and with a penalty on activations.
See :mod:`adasplit_flwr.batch_payload` for the entries.

>>> import numpy as np
>>> batch = ActivationBatch(7, np.ones((2, 3), np.float32), np.array([0, 4]))
>>> arrays = encode_activations([batch], server_round=1, num_classes=5)
>>> [again] = decode_activations(
...     arrays, sender="client 3", server_round=1, activation_shape=(3,), num_classes=5,
...     batch_ids=[7], max_batch_size=32,
... )
>>> again.labels.tolist()
[0, 4]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adasplit_flwr.batch_payload import BatchPayload
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.payload import WireArray

_VALUES, _LABELS = "activations", "labels"


@dataclass(frozen=True, eq=False)
class ActivationBatch:
    """One batch at the cut.

    Parameters
    ----------
    batch_id : int
        Its index within the exchange, from 0.
    activations : NDArray of float32, shape (n, *activation shape)
        Output of the client's part.
    labels : NDArray of int64, shape (n,)
        Class of each sample.
    """

    batch_id: int
    activations: NDArray[np.float32]
    labels: NDArray[np.int64]


def encode_activations(
    batches: Sequence[ActivationBatch],
    *,
    server_round: int,
    num_classes: int,
    precision: str = "float32",
) -> list[NDArray[Any]]:
    """Encode the batches of one exchange.

    Parameters
    ----------
    batches : sequence of ActivationBatch
        One or more, with different ids; sizes may differ.
    server_round : int
        Flower's round.
    num_classes : int
        Labels are below it, and travel in the narrowest unsigned type that holds all of them.
    precision : {"float32", "float16"}
        Type of the activations on the wire. float16 halves the bytes; it turns values below 3e-8
        into zeros.

    Returns
    -------
    list of NDArray
        A payload.

    Raises
    ------
    PayloadError
        There is no batch; ids are out of range or occur twice; activations are not float32, not
        finite, too large for `precision`, or of different shapes; labels are not int64, not one a
        sample, or no class. The batch is named.
    SettingsError
        `precision` is unknown, or `num_classes` is below 1.
    """
    payload = _payload(num_classes, "client")
    for batch in batches:
        _check_labels(payload, batch, num_classes)
    labels = np.concatenate([np.empty(0, np.int64), *(batch.labels for batch in batches)])
    return payload.write(
        [(batch.batch_id, batch.activations) for batch in batches],
        {_LABELS: labels},
        server_round=server_round,
        precision=precision,
    )


def blank_activations(
    sizes: Sequence[int],
    activation_shape: tuple[int, ...],
    *,
    server_round: int,
    num_classes: int,
    precision: str = "float32",
) -> list[NDArray[Any]]:
    """Return a payload of zeros as large as that of batches with so many samples is at most.

    It is that large where the activations travel densely. The zeros take no memory.

    Raises
    ------
    SettingsError
        `num_classes` is below 1.
    """
    return _payload(num_classes, "client").blank(
        sizes, activation_shape, server_round=server_round, precision=precision
    )


def decode_activations(
    arrays: Sequence[WireArray],
    *,
    sender: str,
    server_round: int,
    activation_shape: tuple[int, ...],
    num_classes: int,
    batch_ids: Sequence[int],
    max_batch_size: int,
    max_samples: int | None = None,
) -> list[ActivationBatch]:
    """Check and decode what :func:`encode_activations` wrote.

    Parameters
    ----------
    arrays : sequence of NDArray or bytes
        What came, each as an array or as the ``.npy`` bytes of one.
    sender : str
        Who sent it, e.g. ``"client 3"``.
    server_round : int
        The round it has to be of.
    activation_shape : tuple of int
        Shape at the cut, without the batch.
    num_classes : int
        As in the sender's call.
    batch_ids : sequence of int
        The batches that were asked for, in the order in which they have to come.
    max_batch_size : int
        Most samples in a batch.
    max_samples : int, optional
        Most samples in all batches together; default: as many as the batches may have. Bounds what
        a few bytes of CSR can make this allocate.

    Returns
    -------
    list of ActivationBatch
        In the order of `batch_ids`; views of one stacked array, which may be read-only.

    Raises
    ------
    PayloadError
        Naming the sender, the entry, and the field at fault.
    SettingsError
        `num_classes` is below 1.
    """
    payload = _payload(num_classes, sender)
    stacked = payload.read(
        arrays,
        server_round=server_round,
        sample_shape=activation_shape,
        batch_ids=batch_ids,
        max_batch_size=max_batch_size,
        max_samples=max_samples,
    )
    came = stacked.others[_LABELS]
    if (wrong := np.flatnonzero(came >= num_classes)).size:
        reason = f"sample {wrong[0]} has class {came[wrong[0]]}; there are {num_classes} classes"
        raise payload.refuse(_LABELS, "data", reason)
    parts = zip(
        batch_ids,
        stacked.split(stacked.values),
        stacked.split(came.astype(np.int64)),
        strict=True,
    )
    return [ActivationBatch(int(batch_id), values, labels) for batch_id, values, labels in parts]


def _payload(num_classes: int, sender: str) -> BatchPayload:
    if num_classes < 1:
        raise SettingsError(f"num_classes is {num_classes}; it must be 1 or more")
    return BatchPayload(_VALUES, sender, {_LABELS: np.min_scalar_type(num_classes - 1)})


def _check_labels(payload: BatchPayload, batch: ActivationBatch, num_classes: int) -> None:
    labels = batch.labels
    prefix = f"batch {batch.batch_id}: "
    if labels.dtype != np.int64:
        raise payload.refuse(_LABELS, "dtype", f"{prefix}int64 expected, {labels.dtype} came")
    if labels.ndim != 1 or labels.shape != batch.activations.shape[:1]:
        raise payload.refuse(
            _LABELS,
            "shape",
            f"{prefix}{batch.activations.shape[:1]} expected, {labels.shape} came",
        )
    if (wrong := labels[(labels < 0) | (labels >= num_classes)]).size:
        reason = f"{prefix}class {wrong[0]} came; there are {num_classes} classes"
        raise payload.refuse(_LABELS, "data", reason)
