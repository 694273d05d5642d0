"""One exchange of an AdaSplit client (arXiv 2112.01637), and how far the client has come by it.

Nothing here knows Flower; :class:`adasplit_flwr.AdaSplitClient` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from adasplit_flwr.activation_payload import ActivationBatch
from adasplit_flwr.batches import BEGINNING, BatchWalk, Position
from adasplit_flwr.gradient_payload import decode_gradients
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.plans import ExchangePlan
from zerofl_flwr.errors import ClientFailedError, DataError, PayloadError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import WireArray
from zerofl_flwr.training import Batches

_NEXT, _START = "progress/next", "progress/uploaded-from"
_SIZES, _SHAPE = "progress/uploaded-sizes", "progress/activation-shape"
_ARRAYS = (_NEXT, _START, _SIZES, _SHAPE)


@dataclass(frozen=True)
class Progress:
    """How far a client has come, and what it uploaded in its last exchange.

    Parameters
    ----------
    iterations : int
        Batches taken in the run.
    position : Position
        Where the next batch is.
    uploaded_from : Position
        Where the last exchange began.
    uploaded_sizes : tuple of int
        Samples of each batch that it uploaded; empty if it uploaded nothing.
    activation_shape : tuple of int
        Shape of its activations, without the batch.
    """

    iterations: int = 0
    position: Position = BEGINNING
    uploaded_from: Position = BEGINNING
    uploaded_sizes: tuple[int, ...] = ()
    activation_shape: tuple[int, ...] = ()

    def to_arrays(self) -> dict[str, Array]:
        """Return all but `iterations` as int64 arrays, named ``progress/...``."""
        rows = (
            (self.position.epoch, self.position.offset),
            (self.uploaded_from.epoch, self.uploaded_from.offset),
            self.uploaded_sizes,
            self.activation_shape,
        )
        return {name: np.array(row, np.int64) for name, row in zip(_ARRAYS, rows, strict=True)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], iterations: int) -> Progress:
        """Read what :meth:`to_arrays` returned, among other arrays.

        Raises
        ------
        DataError
            If something is missing or cannot be a client's progress.
        """
        rows: list[tuple[int, ...]] = []
        for name in _ARRAYS:
            array = arrays.get(name)
            if array is None or array.dtype != np.int64 or array.ndim != 1 or (array < 0).any():
                raise DataError(f"{name} of the client's state should be counts in one int64 row")
            rows.append(tuple(array.tolist()))
        following, start, sizes, shape = rows
        if len(following) != 2 or len(start) != 2 or len(sizes) > iterations:
            raise DataError(
                f"the client's state cannot stand at {following} after {iterations} batches, of "
                f"which {len(sizes)} were uploaded from {start}"
            )
        return cls(iterations, Position(*following), Position(*start), sizes, shape)


@dataclass(frozen=True, eq=False)
class ExchangeOutcome:
    """What an exchange gave.

    Parameters
    ----------
    progress : Progress
        After it.
    iterations : int
        Batches taken.
    activations : list of ActivationBatch
        Of its batches, with ids from 0; empty if the plan uploads none.
    samples : int
        Samples taken.
    loss : float
        Mean contrastive loss per sample; 0.0 without a loss of the client's own.
    """

    progress: Progress
    iterations: int
    activations: list[ActivationBatch]
    samples: int
    loss: float


def take_batches(
    trainer: LocalTrainer, walk: BatchWalk, plan: ExchangePlan, iterations_before: int
) -> ExchangeOutcome:
    """Take the exchange's batches, one after the other.

    Parameters
    ----------
    trainer : LocalTrainer
        The client's part and head.
    walk : BatchWalk
        At the client's position.
    plan : ExchangePlan
        The exchange.
    iterations_before : int
        Batches that the client has taken in the run.

    Raises
    ------
    ClientFailedError
        If there is no data, or training diverges.
    """
    start = walk.position
    activations: list[ActivationBatch] = []
    sizes: list[int] = []
    loss_sum = 0.0
    for number, (inputs, labels) in enumerate(walk.take(plan.iterations)):
        outcome = trainer.step(inputs, labels, plan, iterations_before + number)
        loss_sum += outcome.loss * len(labels)
        sizes.append(len(labels))
        if plan.upload:
            activations.append(to_activation_batch(number, outcome.activations, labels))
    progress = Progress(iterations_before + len(sizes), walk.position)
    if activations:
        shape = activations[0].activations.shape[1:]
        progress = replace(
            progress, uploaded_from=start, uploaded_sizes=tuple(sizes), activation_shape=shape
        )
    samples = sum(sizes)
    return ExchangeOutcome(progress, len(sizes), activations, samples, loss_sum / samples)


def take_none(progress: Progress) -> ExchangeOutcome:
    """End a client's exchanges for now: no batch is taken, and no gradient is waited for.

    Parameters
    ----------
    progress : Progress
        Before it; the next batch stays the next.
    """
    return ExchangeOutcome(Progress(progress.iterations, progress.position), 0, [], 0, 0.0)


def apply_gradients(
    trainer: LocalTrainer,
    walk_from: Callable[[Position], BatchWalk],
    progress: Progress,
    arrays: Sequence[WireArray],
    plan: ExchangePlan,
) -> None:
    """Take the server's gradients of the last exchange: a step for each of its batches, in order.

    Parameters
    ----------
    trainer : LocalTrainer
        The client's part.
    walk_from : callable
        Goes through the client's data from a position on.
    progress : Progress
        Before the exchange that the gradients came with.
    arrays : sequence of NDArray or bytes
        A payload of gradients.
    plan : ExchangePlan
        The exchange that they came with.

    Raises
    ------
    PayloadError
        If the client uploaded nothing in its last exchange, or they are not the gradients of that.
    """
    sizes = progress.uploaded_sizes
    if not sizes:
        reason = "gradients came, but this client uploaded no activations in its last exchange"
        raise PayloadError(reason, sender="server", field="arrays")
    gradients = decode_gradients(
        arrays,
        server_round=plan.server_round,
        activation_shape=progress.activation_shape,
        batch_ids=range(len(sizes)),
        batch_sizes=sizes,
    )
    first = progress.iterations - len(sizes)
    batches = walk_from(progress.uploaded_from).take(len(sizes))
    for (number, gradient), (inputs, _) in zip(gradients, batches, strict=True):
        trainer.apply_gradient(inputs, gradient, plan, first + number)


@torch.no_grad()
def infer(client: nn.Module, batches: Batches, *, device: str) -> list[ActivationBatch]:
    """Run test batches through a client part, in evaluation mode.

    Parameters
    ----------
    client : nn.Module
        On `device`.
    batches : iterable of (inputs, labels)
        Test data.
    device : str
        ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    ClientFailedError
        If there are no samples.
    """
    client.eval()
    activations = [
        to_activation_batch(number, client(inputs.to(device)), labels)
        for number, (inputs, labels) in enumerate(batches)
    ]
    if not activations:
        raise ClientFailedError("there is no data to evaluate on: the loader gave no batch")
    return activations


def to_activation_batch(
    batch_id: int, activations: torch.Tensor, labels: torch.Tensor
) -> ActivationBatch:
    """Bring a batch into the form that travels: activations in float32, labels in int64."""
    classes = labels.cpu().numpy()
    if classes.dtype.kind in "iu":  # others are refused when they are encoded
        classes = classes.astype(np.int64)
    return ActivationBatch(batch_id, activations.to("cpu", torch.float32).numpy(), classes)
