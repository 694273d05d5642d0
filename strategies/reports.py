"""What a strategy tells of a finished round, for logs, files and tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.common import FitRes, Scalar
from numpy.typing import NDArray

from strategies.answers import Refusal
from strategies.mask_report import LayerReport, overall_mask_overlap, overall_nonzero_ratio
from strategies.metering import Meter, Traffic
from strategies.replies import Reply
from strategies.traffic import NO_BYTES, Breakdown
from zerofl_flwr.memory import MEMORY
from zerofl_flwr.settings import RoundPlan


@dataclass(frozen=True)
class ClientReport:
    """One client's round: bytes of both messages, seconds of training, and what went wrong.

    ``train_loss``, ``train_seconds`` and ``client_memory_mb``, the peak memory of the client's
    process (:mod:`zerofl_flwr.memory`), are NaN when the client did not tell them; ``failure`` is
    empty for a good reply. ``partition_id`` is None for a failure that Flower left nameless.
    ``down`` and ``up`` say what the bytes are.
    """

    partition_id: int | None
    num_examples: int
    downlink_bytes: int
    uplink_bytes: int
    train_seconds: float
    train_loss: float
    client_memory_mb: float = field(default=math.nan, kw_only=True)
    failure: str = ""
    down: Breakdown = field(default=NO_BYTES, kw_only=True)
    up: Breakdown = field(default=NO_BYTES, kw_only=True)


@dataclass(frozen=True)
class RoundReport:
    """A finished round.

    Parameters
    ----------
    plan : RoundPlan
        What the clients were told.
    clients : sequence of ClientReport
        Everybody who was asked, in partition order.
    layers : sequence of LayerReport
        The masked layers of the new model.
    masks : mapping of str to ndarray
        Per masked layer, the flat top-K mask of the new model, bool.
    """

    plan: RoundPlan
    clients: Sequence[ClientReport]
    layers: Sequence[LayerReport]
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def good(self) -> list[ClientReport]:
        """Clients whose reply was aggregated."""
        return [client for client in self.clients if not client.failure]

    @property
    def train_loss(self) -> float:
        """Mean training loss over the samples of the good replies that tell theirs.

        NaN if none does. A client behind the mod, for instance, need not tell any.
        """
        return mean_train_loss(self.good)

    @property
    def train_seconds(self) -> float:
        """Seconds of training, summed over the good replies that tell theirs; NaN if none does."""
        return total_train_seconds(self.good)

    def metrics(self) -> dict[str, Scalar]:
        """Give the round's figures as Flower metrics (bytes summed over clients, seconds too)."""
        values: dict[str, float] = {
            "train_loss": self.train_loss,
            "train_seconds": self.train_seconds,
            **total_bytes(self.clients),
            "replies": len(self.good),
            "failures": len(self.clients) - len(self.good),
            "nonzero_ratio": overall_nonzero_ratio(self.layers),
            "mask_overlap": overall_mask_overlap(self.layers),
        }
        return dict(values)


@dataclass(frozen=True)
class BaselineRoundReport:
    """A finished round of a baseline.

    Parameters
    ----------
    server_round : int
        From 1.
    clients : sequence of ClientReport
        Everybody who was asked, in partition order.
    restarts : int
        Clients that had lost what they keep from round to round, so that they begin again.
    """

    server_round: int
    clients: Sequence[ClientReport]
    restarts: int = 0

    @property
    def good(self) -> list[ClientReport]:
        """Clients whose reply passed its checks."""
        return [client for client in self.clients if not client.failure]

    def metrics(self) -> dict[str, Scalar]:
        """Give the round's figures as Flower metrics; see :class:`RoundReport` for each."""
        values: dict[str, float] = {
            "train_loss": mean_train_loss(self.good),
            "train_seconds": total_train_seconds(self.good),
            **total_bytes(self.clients),
            "replies": len(self.good),
            "failures": len(self.clients) - len(self.good),
            "restarts": self.restarts,
        }
        return dict(values)


def mean_of(values: Sequence[float]) -> float:
    """Average what is not NaN; NaN if nothing is left."""
    told = [value for value in values if not math.isnan(value)]
    return sum(told) / len(told) if told else math.nan


def mean_train_loss(clients: Iterable[ClientReport]) -> float:
    """Average the training loss over the samples of the clients that tell theirs; NaN of none."""
    told = [client for client in clients if not math.isnan(client.train_loss)]
    total = sum(client.num_examples for client in told)
    if total == 0:
        return math.nan
    return sum(client.train_loss * client.num_examples for client in told) / total


def total_bytes(clients: Iterable[ClientReport]) -> dict[str, int]:
    """Sum the bytes over clients, measured and counted as AdaSplit's authors do."""
    everybody = list(clients)
    return {
        "downlink_bytes": sum(client.downlink_bytes for client in everybody),
        "uplink_bytes": sum(client.uplink_bytes for client in everybody),
        "downlink_bytes_counted": sum(client.down.counted for client in everybody),
        "uplink_bytes_counted": sum(client.up.counted for client in everybody),
    }


def total_train_seconds(clients: Iterable[ClientReport]) -> float:
    """Sum the seconds of the clients that tell theirs; NaN if none does."""
    told = [c.train_seconds for c in clients if not math.isnan(c.train_seconds)]
    return sum(told) if told else math.nan


def client_reports(
    good: Sequence[Reply], refusals: Sequence[Refusal], meter: Meter
) -> list[ClientReport]:
    """Put good replies and refusals, with their traffic, in partition order."""
    clients = []
    for reply in good:
        client, traffic = reply.member.partition_id, meter.of(reply.member.partition_id)
        clients.append(
            ClientReport(
                partition_id=client,
                num_examples=reply.result.num_examples,
                **vars(traffic),
                train_seconds=_number(reply.result, "train_seconds"),
                train_loss=_number(reply.result, "train_loss"),
                client_memory_mb=_number(reply.result, MEMORY),
            )
        )
    for refusal in refusals:
        traffic = Traffic() if refusal.partition_id is None else meter.of(refusal.partition_id)
        clients.append(
            ClientReport(
                partition_id=refusal.partition_id,
                num_examples=0,
                **vars(traffic),
                train_seconds=math.nan,
                train_loss=math.nan,
                failure=refusal.reason,
            )
        )
    return sorted(clients, key=lambda c: -1 if c.partition_id is None else c.partition_id)


def _number(result: FitRes, name: str) -> float:
    value = result.metrics.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return math.nan
