"""Tests of the clients' networks in AdaSplit: check what came back, and predict where asked to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING

import torch
from flwr.common import EvaluateRes, Scalar
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy
from torch import nn

from adasplit_flwr.masked_server import MaskedServer
from adasplit_flwr.plans import FRESH, TestPlan
from strategies.adasplit_downlink import Asked
from strategies.adasplit_replies import MAX_ITERATIONS, CutShapes, check_samples, whole_metric
from strategies.adasplit_report import mean_of
from strategies.answers import Answer, Refusal, check_examples, name_missing, sort_replies
from strategies.metering import Traffic
from zerofl_flwr.errors import ClientFailedError, PayloadError
from zerofl_flwr.training import evaluate


@dataclass(frozen=True)
class AdaSplitClientTest:
    """One client's test of its own network.

    Parameters
    ----------
    partition_id : int or None
        None for a failure that Flower left nameless.
    num_examples : int
        Samples.
    trained : bool
        Whether the client has trained as the server knows; else it tests what it would start from.
    learned : bool
        Whether the server has learned from the client, so that its mask is a trained one and not
        the random one that it starts with. Without masks all share one server part: then whether
        the server has learned from anybody.
    accuracy : float
        Share of right answers, in [0, 1]; NaN if the test failed.
    loss : float
        Mean cross-entropy; NaN if the test failed.
    downlink_bytes, uplink_bytes : int
        Of the test's two messages.
    failure : str
        Why there is no result; empty if there is one.
    """

    partition_id: int | None
    num_examples: int
    trained: bool
    learned: bool
    accuracy: float
    loss: float
    downlink_bytes: int
    uplink_bytes: int
    failure: str = ""


@dataclass(frozen=True)
class AdaSplitTestReport:
    """A finished test; its bytes are no round's.

    Parameters
    ----------
    server_round : int
        Round after which it happened.
    clients : sequence of AdaSplitClientTest
        Everybody who was asked, in partition order.
    """

    server_round: int
    clients: Sequence[AdaSplitClientTest]

    @property
    def good(self) -> list[AdaSplitClientTest]:
        """Clients with a result."""
        return [client for client in self.clients if not client.failure]

    @property
    def accuracy(self) -> float:
        """Mean over the clients, each counting once whatever its samples; NaN of none."""
        return mean_of([client.accuracy for client in self.good])

    @property
    def trained_accuracy(self) -> float:
        """The same over those that have trained."""
        return mean_of([client.accuracy for client in self.good if client.trained])

    @property
    def learned_accuracy(self) -> float:
        """The same over those from which the server has learned; NaN of none."""
        return mean_of([client.accuracy for client in self.good if client.learned])

    @property
    def loss(self) -> float:
        """Mean loss over the clients, each counting once; NaN of none."""
        return mean_of([client.loss for client in self.good])

    def metrics(self) -> dict[str, Scalar]:
        """Give the test's figures as Flower metrics (bytes summed over clients)."""
        values: dict[str, float] = {
            "accuracy": self.accuracy,
            "trained_accuracy": self.trained_accuracy,
            "learned_accuracy": self.learned_accuracy,
            "evaluation_downlink_bytes": sum(client.downlink_bytes for client in self.clients),
            "evaluation_uplink_bytes": sum(client.uplink_bytes for client in self.clients),
            "evaluation_replies": len(self.good),
            "evaluation_failures": len(self.clients) - len(self.good),
        }
        return dict(values)


def test_report(
    server_round: int,
    asked: Asked[TestPlan],
    results: Sequence[tuple[ClientProxy, EvaluateRes]],
    failures: Sequence[tuple[ClientProxy, EvaluateRes] | BaseException],
    shapes: CutShapes,
    server: MaskedServer,
) -> AdaSplitTestReport:
    """Read the clients' replies to a test, or test what they uploaded; log what is refused.

    Parameters
    ----------
    server_round : int
        Round after which the test happens.
    asked : Asked
        Who was sent which plan.
    results, failures
        As Flower hands them over.
    shapes : CutShapes
        Of uploaded activations.
    server : MaskedServer
        Predicts from them, and knows whose masks were trained.
    """
    replies, refusals = sort_replies(results, failures)
    tests: list[AdaSplitClientTest] = []
    good: list[Answer[EvaluateRes]] = []
    for reply in replies:
        client, samples = reply.member.partition_id, reply.result.num_examples
        try:
            accuracy, loss = read_test(reply, asked.plan_of(reply.member), shapes, server)
        except (PayloadError, ClientFailedError) as error:
            refusals.append(Refusal(client, str(error)))
            continue
        good.append(reply)
        tests.append(_noted(client, asked, server, samples, accuracy, loss))
    for refusal in name_missing(asked.members, good, refusals):
        log(WARNING, "round %d, test failed: %s", server_round, refusal.reason)
        tests.append(_noted(refusal.partition_id, asked, server, failure=refusal.reason))
    tests.sort(key=lambda test: -1 if test.partition_id is None else test.partition_id)
    return AdaSplitTestReport(server_round, tests)


def read_test(
    reply: Answer[EvaluateRes], plan: TestPlan, shapes: CutShapes, server: MaskedServer
) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy of a client.

    Raises
    ------
    PayloadError, ClientFailedError
        Naming the client and what is wrong with its reply.
    """
    sender, result = str(reply.member), reply.result
    check_examples(result.num_examples, sender)
    if not plan.upload:
        accuracy = _number(result.metrics.get("accuracy"), "accuracy", sender)
        if accuracy > 1:
            raise PayloadError(f"{accuracy} is above 1", sender=sender, field="accuracy")
        return accuracy, _number(result.loss, "loss", sender)
    count = whole_metric(result.metrics, "batches", sender, 1, MAX_ITERATIONS)
    shapes.check_upload(result.num_examples, sender)
    batches = shapes.decode(
        _payload(result.metrics, sender),
        sender=sender,
        server_round=plan.server_round,
        batches=count,
    )
    check_samples(batches, result.num_examples, sender)
    inputs = (
        (torch.tensor(batch.activations).to(server.dtype), torch.tensor(batch.labels))
        for batch in batches
    )
    # The function with which clients test, so that both give the same numbers.
    outcome = evaluate(_ServerPart(server, reply.member.partition_id), inputs)
    return outcome.accuracy, _number(outcome.loss, "loss", sender)


def _noted(
    client: int | None,
    asked: Asked[TestPlan],
    server: MaskedServer,
    samples: int = 0,
    accuracy: float = math.nan,
    loss: float = math.nan,
    failure: str = "",
) -> AdaSplitClientTest:
    plan, traffic = None, Traffic()
    if client is not None:
        plan, traffic = asked.plans.get(client), asked.meter.of(client)
    return AdaSplitClientTest(
        partition_id=client,
        num_examples=samples,
        trained=plan is not None and plan.state_round != FRESH,
        learned=client is not None and server.has_learned_from(client),
        accuracy=accuracy,
        loss=loss,
        downlink_bytes=traffic.downlink_bytes,
        uplink_bytes=traffic.uplink_bytes,
        failure=failure,
    )


class _ServerPart(nn.Module):
    """One client's server part, as a module."""

    def __init__(self, server: MaskedServer, client: int) -> None:
        super().__init__()
        self._server = server
        self._client = client

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        return self._server.predict(self._client, activations)


def _payload(metrics: Mapping[str, Scalar], sender: str) -> list[bytes]:
    arrays: list[bytes] = []
    while (name := f"payload-{len(arrays)}") in metrics:
        value = metrics[name]
        if not isinstance(value, bytes):
            reason = f"bytes expected, {type(value).__name__} came"
            raise PayloadError(reason, sender=sender, field=name)
        arrays.append(value)
    return arrays


def _number(value: object, field: str, sender: str) -> float:
    told = isinstance(value, int | float) and not isinstance(value, bool)
    if not told or not 0 <= value < math.inf:  # type: ignore[operator]
        raise PayloadError(
            f"expected a finite number from 0, got {value!r}", sender=sender, field=field
        )
    return float(value)  # type: ignore[arg-type]
