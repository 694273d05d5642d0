"""What AdaSplit tells of a finished round, and of a test, for logs, files and tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.common import Scalar

from strategies.adasplit_replies import Exchange
from strategies.adasplit_server import Lessons, ServerTrainer
from strategies.adasplit_turns import Turn
from strategies.answers import Refusal
from strategies.metering import Meter
from strategies.reports import (
    ClientReport,
    client_reports,
    mean_of,
    mean_train_loss,
    total_bytes,
    total_train_seconds,
)


@dataclass(frozen=True)
class AdaSplitClientReport(ClientReport):
    """One client's exchange; see :class:`strategies.reports.ClientReport` for the first fields.

    Parameters
    ----------
    picked : bool
        Whether it was to upload activations.
    server_loss : float
        Mean cross-entropy of its samples, each batch before its step; NaN if there was none.
    exploitation, exploration : float
        Both terms of the orchestrator's score when the picks were made; NaN before it knew the
        client.
    mask_density : float
        How much of the server part its mask lets through, after the round; NaN if nothing of the
        client was learned from.
    server_samples : int
        Samples of its upload that the server learned from.
    gradient_samples : int
        Samples of its last exchange whose gradients it was sent and applied.
    """

    picked: bool = False
    server_loss: float = math.nan
    exploitation: float = math.nan
    exploration: float = math.nan
    mask_density: float = math.nan
    server_samples: int = 0
    gradient_samples: int = 0


@dataclass(frozen=True)
class AdaSplitRoundReport:
    """A finished round.

    Parameters
    ----------
    server_round : int
        From 1.
    phase : str
        ``"local"``, ``"global"``, or ``"finish"`` for a round that takes no batches: it brings the
        server's last gradients before client parts are shared.
    clients : sequence of AdaSplitClientReport
        Everybody who was asked, in partition order. A client whose upload the server could learn
        from only in part has a failure too, although its own training counts.
    server_loss : float
        Mean cross-entropy over all samples that the server learned from; NaN in the local phase.
    server_seconds : float
        Seconds that the server trained.
    restarts : int
        Clients that have lost their state, and begin again from the common start.
    held_back : int
        Clients that the budget kept from uploading, or from taking part at all.
    """

    server_round: int
    phase: str
    clients: Sequence[AdaSplitClientReport]
    server_loss: float
    server_seconds: float
    restarts: int = 0
    held_back: int = 0

    @property
    def good(self) -> list[AdaSplitClientReport]:
        """Clients without a failure."""
        return [client for client in self.clients if not client.failure]

    @property
    def train_loss(self) -> float:
        """Mean contrastive loss over the samples of the good replies; NaN if there is none."""
        return mean_train_loss(self.good)

    @property
    def train_seconds(self) -> float:
        """Seconds of training, summed over the good replies; NaN if there is none."""
        return total_train_seconds(self.good)

    @property
    def mask_density(self) -> float:
        """Mean density of the masks that were trained; NaN if none was."""
        return mean_of([client.mask_density for client in self.clients])

    def metrics(self) -> dict[str, Scalar]:
        """Give the round's figures as Flower metrics (bytes summed over clients, seconds too)."""
        values: dict[str, float] = {
            "train_loss": self.train_loss,
            "train_seconds": self.train_seconds,
            **total_bytes(self.clients),
            "replies": len(self.good),
            "failures": len(self.clients) - len(self.good),
            "restarts": self.restarts,
            "picked": sum(client.picked for client in self.clients),
            "held_back": self.held_back,
            "server_loss": self.server_loss,
            "server_seconds": self.server_seconds,
            "mask_density": self.mask_density,
        }
        return dict(values)


def round_report(
    server_round: int,
    turn: Turn,
    good: Sequence[Exchange],
    refusals: Sequence[Refusal],
    meter: Meter,
    lessons: Mapping[int, Lessons],
    trainer: ServerTrainer,
    returned: Mapping[int, int] | None = None,
) -> AdaSplitRoundReport:
    """Put a round's outcome together.

    Parameters
    ----------
    server_round : int
        From 1.
    turn : Turn
        Who trained, and who was picked.
    good : sequence of Exchange
        Replies that passed their checks.
    refusals : sequence of Refusal
        Everybody else who was asked.
    meter : Meter
        Bytes of the round's messages.
    lessons : mapping of int to Lessons
        What the server made of the uploads, by partition id.
    trainer : ServerTrainer
        What trained; tells the masks' densities and its seconds.
    returned : mapping of int to int, optional
        Of clients that applied gradients, by partition id, how many samples' those were.
    """
    clients = []
    for client in client_reports([exchange.answer for exchange in good], refusals, meter):
        identity = client.partition_id
        lesson, density = Lessons(), math.nan
        if identity is not None and identity in lessons:
            lesson = lessons[identity]
            density = trainer.density(identity) if lesson.samples else math.nan
        exploitation, exploration = turn.terms_of(identity)
        told = {**vars(client), "failure": client.failure or lesson.failure}
        clients.append(
            AdaSplitClientReport(
                **told,
                picked=identity in turn.picks,
                server_loss=lesson.mean_loss,
                exploitation=exploitation,
                exploration=exploration,
                mask_density=density,
                server_samples=lesson.samples,
                gradient_samples=0 if identity is None else (returned or {}).get(identity, 0),
            )
        )
    samples = sum(lesson.samples for lesson in lessons.values())
    total = sum(lesson.loss for lesson in lessons.values())
    return AdaSplitRoundReport(
        server_round,
        turn.phase,
        clients,
        total / samples if samples else math.nan,
        trainer.seconds,
        held_back=len(turn.held_back),
    )


def idle_report(server_round: int, turn: Turn) -> AdaSplitRoundReport:
    """Report a round in which the budget held back everybody."""
    held_back = len(turn.held_back)
    return AdaSplitRoundReport(server_round, turn.phase, (), math.nan, 0.0, held_back=held_back)
