"""Tests of networks by the clients that hold the data: what came back, checked and summed up."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Generic, TypeVar

from flwr.common import EvaluateRes, Scalar
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy

from strategies.answers import Answer, Refusal, check_examples, name_missing, sort_replies
from strategies.member import Member
from strategies.metering import Meter, Traffic
from strategies.reports import mean_of
from zerofl_flwr.errors import ClientFailedError, PayloadError


@dataclass(frozen=True)
class ClientTest:
    """One client's test of a network on its own data.

    Parameters
    ----------
    partition_id : int or None
        None for a failure that Flower left nameless.
    num_examples : int
        Samples.
    trained : bool
        Whether the network has been trained at all. False for a client that trains alone and has
        not been asked to yet: it tests the common start.
    accuracy : float
        Share of right answers, in [0, 1]; NaN if the test failed, or the client tells none.
    loss : float
        Mean loss of a sample; NaN if the test failed.
    downlink_bytes, uplink_bytes : int
        Of the test's two messages.
    failure : str
        Why there is no result; empty if there is one.
    """

    partition_id: int | None
    num_examples: int
    trained: bool
    accuracy: float
    loss: float
    downlink_bytes: int
    uplink_bytes: int
    failure: str = ""


@dataclass(frozen=True)
class AdaSplitClientTest:
    """One client's test of its own network in AdaSplit: as :class:`ClientTest`, and `learned`.

    Parameters
    ----------
    learned : bool
        Whether the server has learned from the client, so that its mask is a trained one and not
        the random one that it starts with. Without masks all share one server part: then whether
        the server has learned from anybody.
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


Test = TypeVar("Test", ClientTest, AdaSplitClientTest)


@dataclass(frozen=True)
class TestReport(Generic[Test]):
    """A finished test; its bytes are no round's.

    Parameters
    ----------
    server_round : int
        Round after which it happened.
    clients : sequence of ClientTest or AdaSplitClientTest
        Everybody who was asked, in partition order.
    """

    server_round: int
    clients: Sequence[Test]

    @property
    def good(self) -> list[Test]:
        """Clients with a result."""
        return [client for client in self.clients if not client.failure]

    @property
    def accuracy(self) -> float:
        """Mean over the clients that tell theirs, each counting once; NaN of none."""
        return mean_of([client.accuracy for client in self.good])

    @property
    def trained_accuracy(self) -> float:
        """The same over those whose network has been trained."""
        return mean_of([client.accuracy for client in self.good if client.trained])

    @property
    def loss(self) -> float:
        """Mean loss over the clients, each counting once; NaN of none."""
        return mean_of([client.loss for client in self.good])

    def metrics(self) -> dict[str, Scalar]:
        """Give the test's figures as Flower metrics (bytes summed over clients)."""
        values: dict[str, float] = {
            "accuracy": self.accuracy,
            "trained_accuracy": self.trained_accuracy,
            "evaluation_downlink_bytes": sum(client.downlink_bytes for client in self.clients),
            "evaluation_uplink_bytes": sum(client.uplink_bytes for client in self.clients),
            "evaluation_replies": len(self.good),
            "evaluation_failures": len(self.clients) - len(self.good),
        }
        return dict(values)


class ClientTestReport(TestReport[ClientTest]):
    """A finished test of networks by clients; see :class:`TestReport`."""


class AdaSplitTestReport(TestReport[AdaSplitClientTest]):
    """A finished test in AdaSplit; see :class:`TestReport`."""

    @property
    def learned_accuracy(self) -> float:
        """Mean accuracy over those from which the server has learned; NaN of none."""
        return mean_of([client.accuracy for client in self.good if client.learned])

    def metrics(self) -> dict[str, Scalar]:
        """Give the test's figures as Flower metrics (bytes summed over clients)."""
        return {**super().metrics(), "learned_accuracy": self.learned_accuracy}


def read_told(reply: Answer[EvaluateRes], *, required: bool = False) -> tuple[float, float]:
    """Return the accuracy of a client's test and the loss, as the client tells them.

    Parameters
    ----------
    reply : Answer
        The client's.
    required : bool
        Whether it must tell its accuracy; else that is NaN where it does not.

    Raises
    ------
    PayloadError
        Naming the client and the field that cannot be.
    """
    sender, result = str(reply.member), reply.result
    check_examples(result.num_examples, sender)
    loss = finite(result.loss, "loss", sender)
    if "accuracy" not in result.metrics and not required:
        return math.nan, loss
    accuracy = finite(result.metrics.get("accuracy"), "accuracy", sender)
    if not 0 <= accuracy <= 1:
        reason = f"{accuracy} is not between 0 and 1"
        raise PayloadError(reason, sender=sender, field="accuracy")
    return accuracy, loss


def read_tests(
    server_round: int,
    asked: Sequence[Member],
    meter: Meter,
    results: Sequence[tuple[ClientProxy, EvaluateRes]],
    failures: Sequence[tuple[ClientProxy, EvaluateRes] | BaseException],
    has_trained: Callable[[int], bool] = lambda _: True,
    read: Callable[[Answer[EvaluateRes]], tuple[float, float]] = read_told,
) -> tuple[ClientTestReport, list[Answer[EvaluateRes]]]:
    """Check the clients' replies to a test; log what is refused, which ends nothing.

    Parameters
    ----------
    server_round : int
        Round after which the test happens.
    asked : sequence of Member
        Who was asked.
    meter : Meter
        Of the test's messages.
    results, failures
        As Flower hands them over.
    has_trained : callable
        Says of a partition id whether the network that it tests has been trained.
    read : callable
        Returns accuracy and loss of a reply; raises PayloadError or ClientFailedError for one that
        is to be refused.

    Returns
    -------
    tuple
        The report; and the good replies, in partition order.
    """
    replies, refusals = sort_replies(results, failures)
    good: list[Answer[EvaluateRes]] = []
    tests: list[ClientTest] = []
    for reply in replies:
        client = reply.member.partition_id
        try:
            accuracy, loss = read(reply)
        except (PayloadError, ClientFailedError) as error:
            refusals.append(Refusal(client, str(error)))
            continue
        good.append(reply)
        traffic, trained = meter.of(client), has_trained(client)
        sizes = (traffic.downlink_bytes, traffic.uplink_bytes)
        tests.append(ClientTest(client, reply.result.num_examples, trained, accuracy, loss, *sizes))
    for refusal in name_missing(asked, good, refusals):
        log(WARNING, "round %d, test failed: %s", server_round, refusal.reason)
        traffic = Traffic() if refusal.partition_id is None else meter.of(refusal.partition_id)
        tests.append(
            ClientTest(
                partition_id=refusal.partition_id,
                num_examples=0,
                trained=refusal.partition_id is not None and has_trained(refusal.partition_id),
                accuracy=math.nan,
                loss=math.nan,
                downlink_bytes=traffic.downlink_bytes,
                uplink_bytes=traffic.uplink_bytes,
                failure=refusal.reason,
            )
        )
    tests.sort(key=lambda test: -1 if test.partition_id is None else test.partition_id)
    return ClientTestReport(server_round, tests), good


def finite(value: object, field: str, sender: str) -> float:
    """Return a number that a reply tells, or that was computed from one.

    Raises
    ------
    PayloadError
        Naming the client and the field, if it is no finite number.
    """
    told = isinstance(value, int | float) and not isinstance(value, bool)
    if not told or not math.isfinite(value):  # type: ignore[arg-type]
        reason = f"expected a finite number, got {reprlib.repr(value)}"
        raise PayloadError(reason, sender=sender, field=field)
    return float(value)  # type: ignore[arg-type]
