"""One exchange at AdaSplit's server: learn from what came, batch by batch across the clients."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adasplit_flwr.activation_payload import ActivationBatch
from adasplit_flwr.flat_parameters import FlatParameters
from adasplit_flwr.mask_store import record_bytes
from adasplit_flwr.masked_adam import AdamSettings
from adasplit_flwr.masked_server import MaskedServer, store_for
from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_clients import Gradients
from strategies.state import State
from zerofl_flwr.errors import ClientFailedError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.training import seed_of, seeded

_DROPOUT_STREAM = 5  # sets the server's dropout apart from the clients' of the same seed
_MEGABYTE = 2**20


@dataclass
class Lessons:
    """What the server made of one client's batches.

    Parameters
    ----------
    loss : float
        Summed over samples, each batch before its step.
    samples : int
        Of the batches that the server learned from.
    gradients : Gradients
        Of the loss at the cut, batch by batch, if they are kept.
    failure : str
        Why the rest of the exchange was left out; empty if nothing was.
    """

    loss: float = 0.0
    samples: int = 0
    gradients: Gradients = field(default_factory=list)
    failure: str = ""

    @property
    def mean_loss(self) -> float:
        """Mean loss of a sample; NaN if the server learned nothing."""
        return self.loss / self.samples if self.samples else math.nan


class ServerTrainer:
    """Trains the masked server part, and keeps the orchestrator informed.

    AdaSplit, arXiv 2112.01637. Each iteration takes one batch of each client that has one left, in
    partition order, a step each. After the last, the orchestrator gets one entry for the exchange:
    each client's mean loss over the samples that were learned from.

    Parameters
    ----------
    server : MaskedServer
        Trained in place.
    orchestrator : Orchestrator
        Updated also where it makes no picks: it counts the exchanges, and reports show it.
    seed : int
        Dropout and the like draw from torch's global generator, seeded by (seed, iteration of the
        run, client) for each batch and restored afterwards.
    keep_gradients : bool
        Whether to keep the gradients at the cut.

    Attributes
    ----------
    seconds : float
        What the last exchange took.
    """

    def __init__(
        self,
        server: MaskedServer,
        orchestrator: Orchestrator,
        *,
        seed: int,
        keep_gradients: bool,
    ) -> None:
        self._server = server
        self._orchestrator = orchestrator
        self._seed = seed
        self._keep_gradients = keep_gradients
        self.seconds = 0.0
        self._iterations = 0

    def density(self, client: int) -> float:
        """Return how much of the server part a client's mask lets through."""
        return self._server.density(client)

    def learn(self, uploads: Mapping[int, Sequence[ActivationBatch]]) -> dict[int, Lessons]:
        """Learn from one exchange.

        A batch that the server part does not take, or whose loss or gradient is not finite, changes
        nothing and ends its client's exchange; the gradients of one that ended early are dropped.

        Parameters
        ----------
        uploads : mapping of int to sequence of ActivationBatch
            By partition id. All of them are held until the exchange is over; only the batch at work
            is copied.

        Returns
        -------
        dict of int to Lessons
            By partition id, ascending.

        Raises
        ------
        RoundFailedError
            If a loss is too large for the orchestrator.
        """
        started = time.perf_counter()
        lessons = {client: Lessons() for client in sorted(uploads)}
        for iteration in range(max(map(len, uploads.values()), default=0)):
            for client, lesson in lessons.items():
                if iteration < len(uploads[client]) and not lesson.failure:
                    self._learn_batch(client, uploads[client][iteration], lesson)
            self._iterations += 1
        losses = {client: each.mean_loss for client, each in lessons.items() if each.samples}
        if losses:
            self._orchestrator.update(losses)
        self.seconds = time.perf_counter() - started
        return lessons

    def state_arrays(self) -> State:
        """Return ``iterations``, one int64: those of the run, on which dropout depends."""
        return {"iterations": np.array(self._iterations, np.int64)}

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is something else; then nothing has changed.
        """
        count = state.get("iterations")
        if count is None or count.shape != () or count.dtype != np.int64 or count < 0:
            raise SettingsError("this is no count of iterations of AdaSplit's server")
        self._iterations = int(count)

    def _learn_batch(self, client: int, batch: ActivationBatch, lesson: Lessons) -> None:
        activations = torch.tensor(batch.activations).to(self._server.dtype)
        labels = torch.tensor(batch.labels)
        seed = seed_of(self._seed, _DROPOUT_STREAM, self._iterations, client)
        try:
            with seeded(seed, "cpu"):
                outcome = self._server.train_batch(
                    client, activations, labels, input_gradient=self._keep_gradients
                )
        except ClientFailedError as error:
            lesson.failure = f"{error} (batch {batch.batch_id} of its exchange, the rest left out)"
            lesson.gradients = []
            return
        lesson.loss += outcome.loss * len(labels)
        lesson.samples += len(labels)
        if outcome.gradient is not None:
            lesson.gradients.append((batch.batch_id, outcome.gradient.numpy()))


def build_server(
    part: nn.Module, settings: AdaSplitSettings, *, seed: int, folder: Path | None
) -> MaskedServer:
    """Build the server part's trainer from the method's settings.

    Parameters
    ----------
    part : nn.Module
        The server part; copied.
    settings : AdaSplitSettings
        ``mask``, ``mask_penalty``, ``mask_memory_mb`` and those of Adam count here.
    seed : int
        Seed of the run, from which the clients' first masks derive.
    folder : Path, optional
        Where masks go that do not fit into ``mask_memory_mb``. Without one, all stay in memory.

    Raises
    ------
    SettingsError
        If the part cannot be trained, or memory has no room for one mask.
    """
    store = None
    if settings.mask != "none":
        if folder is not None:
            _check_room(FlatParameters(part), settings.mask_memory_mb)
        store = store_for(
            part,
            seed=seed,
            folder=folder,
            memory_budget_bytes=settings.mask_memory_mb * _MEGABYTE,
        )
    return MaskedServer(
        part,
        store,
        masks=settings.mask,
        mask_penalty=settings.mask_penalty,
        optimizer=AdamSettings(
            learning_rate=settings.adam_learning_rate, weight_decay=settings.adam_weight_decay
        ),
        seed=seed,
    )


def _check_room(weights: FlatParameters, megabytes: int) -> None:
    needed = math.ceil(record_bytes(weights.length, weights.dtype) / _MEGABYTE)
    if megabytes < needed:
        raise SettingsError(
            f"mask_memory_mb is {megabytes}; one client's mask and its two moments take "
            f"{needed} megabytes"
        )
