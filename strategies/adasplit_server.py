"""One exchange at AdaSplit's server: learn from what came, batch by batch across the clients."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
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
_MEGABYTE = 10**6


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
    each client's mean loss over the samples that were learned from. Where client parts are relayed,
    all turns of a pass are one entry.

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
        # What the next entry is made of: by client the summed loss and the samples.
        self._heard: dict[int, tuple[float, int]] = {}

    def density(self, client: int) -> float:
        """Return how much of the server part a client's mask lets through."""
        return self._server.density(client)

    def learn(
        self,
        uploads: Mapping[int, Sequence[ActivationBatch]],
        picks: Collection[int] = (),
        *,
        is_entry: bool = True,
    ) -> dict[int, Lessons]:
        """Learn from one exchange.

        A batch that the server part does not take, or whose loss or gradient is not finite, changes
        nothing and ends its client's exchange; the gradients of one that ended early are dropped.

        Parameters
        ----------
        uploads : mapping of int to sequence of ActivationBatch
            By partition id. All of them are held until the exchange is over; only the batch at work
            is copied.
        picks : collection of int
            Who was to upload, if that is more; with relayed parts, in this exchange.
        is_entry : bool
            Whether the orchestrator gets its entry now. Otherwise what it would say is added to
            that of the next exchange.

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
        self._hear(lessons, picks)
        if is_entry:
            self._tell()
        self.seconds = time.perf_counter() - started
        return lessons

    def state_arrays(self) -> State:
        """Return ``iterations``, one int64: those of the run, on which dropout depends.

        Between the turns of a pass, ``heard``, (n, 3) in float64, too: client, loss and samples.
        """
        state = {"iterations": np.array(self._iterations, np.int64)}
        if self._heard:
            rows = [(client, *heard) for client, heard in self._heard.items()]
            state["heard"] = np.array(rows, np.float64)
        return state

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
        heard = state.get("heard", np.empty((0, 3)))
        if heard.ndim != 2 or heard.shape[1] != 3 or heard.dtype != np.float64:
            raise SettingsError("these are no losses of AdaSplit's server")
        self._iterations = int(count)
        self._heard = {
            int(client): (loss, int(samples)) for client, loss, samples in heard.tolist()
        }

    def _hear(self, lessons: Mapping[int, Lessons], picks: Collection[int]) -> None:
        for client in sorted({*lessons, *picks}):
            lesson = lessons.get(client, Lessons())
            loss, samples = self._heard.get(client, (0.0, 0))
            self._heard[client] = (loss + lesson.loss, samples + lesson.samples)

    def _tell(self) -> None:
        """Give the orchestrator its entry, if anybody was to upload since the last."""
        if not self._heard:
            return
        losses = {
            client: loss / samples for client, (loss, samples) in self._heard.items() if samples
        }
        self._orchestrator.update(losses, failed=self._heard.keys() - losses.keys())
        self._heard = {}

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
            check_mask_memory(part, settings)
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


def check_mask_memory(part: nn.Module, settings: AdaSplitSettings) -> None:
    """Refuse a run in whose folder the masks are to lie, but whose memory has no room for one.

    Parameters
    ----------
    part : nn.Module
        The server part.
    settings : AdaSplitSettings
        ``mask`` and ``mask_memory_mb`` count here.

    Raises
    ------
    SettingsError
        If one client's mask with its moments takes more than ``mask_memory_mb``, or nothing of the
        part can be trained.
    """
    if settings.mask == "none":
        return
    weights = FlatParameters(part)
    needed = record_bytes(weights.length, weights.dtype)
    if needed > settings.mask_memory_mb * _MEGABYTE:
        tenths = math.ceil(10 * needed / _MEGABYTE)
        raise SettingsError(
            f"mask_memory_mb is {settings.mask_memory_mb}; one client's mask and its two moments "
            f"take {tenths / 10} megabytes"
        )
