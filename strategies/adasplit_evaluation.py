"""Tests of the clients' networks in AdaSplit: check what came back, and predict where asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from flwr.common import EvaluateIns, EvaluateRes, Scalar
from flwr.server.client_proxy import ClientProxy
from torch import nn

from adasplit_flwr.masked_server import MaskedServer
from adasplit_flwr.plans import FRESH, TestPlan
from strategies.adasplit_downlink import Asked, Downlink
from strategies.adasplit_options import Participation, share_of
from strategies.adasplit_replies import MAX_ITERATIONS, CutShapes, check_samples
from strategies.answers import Answer, check_examples, whole_metric
from strategies.client_tests import (
    AdaSplitClientTest,
    AdaSplitTestReport,
    finite,
    read_tests,
    read_told,
)
from strategies.cohort import Cohort
from strategies.member import Member
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.training import evaluate


def ask_to_test(
    asked: Asked[TestPlan],
    cohort: Cohort,
    participation: Participation,
    downlink: Downlink,
    server: MaskedServer,
) -> list[tuple[ClientProxy, EvaluateIns]]:
    """Choose who tests, write everybody's message, and note who is asked what.

    Parameters
    ----------
    asked : Asked
        Filled; its meter is that of the cohort.
    cohort : Cohort
        At this test.
    participation : Participation
        Which share of the clients tests.
    downlink : Downlink
        Of this round.
    server : MaskedServer
        Gives each client's server part.
    """
    number = max(1, share_of(cohort.num_available(), participation.fraction_evaluate))
    asked.members = cast(list[Member], cohort.sample(number))
    pairs: list[tuple[ClientProxy, EvaluateIns]] = []
    for member in asked.members:
        plan, message = downlink.test(member.partition_id, server)
        asked.plans[member.partition_id] = plan
        pairs.append((member, message))
    return pairs


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

    def has_trained(client: int) -> bool:
        plan = asked.plans.get(client)
        return plan is not None and plan.state_round != FRESH

    def has_learned(client: int | None) -> bool:
        return client is not None and server.has_learned_from(client)

    report, _ = read_tests(
        server_round,
        asked.members,
        asked.meter,
        results,
        failures,
        has_trained,
        lambda reply: read_test(reply, asked.plan_of(reply.member), shapes, server),
    )
    clients = [
        AdaSplitClientTest(learned=has_learned(test.partition_id), **vars(test))
        for test in report.clients
    ]
    return AdaSplitTestReport(server_round, clients)


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
    if not plan.upload:
        return read_told(reply, required=True)
    check_examples(result.num_examples, sender)
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
    return outcome.accuracy, finite(outcome.loss, "loss", sender)


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
