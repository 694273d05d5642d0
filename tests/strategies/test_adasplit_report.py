"""Reports of AdaSplit's rounds and tests add up, and their figures are where they belong."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, FitRes

from adasplit_flwr.settings import AdaSplitSettings
from strategies import (
    AdaSplitClientReport,
    AdaSplitClientTest,
    AdaSplitRoundReport,
    AdaSplitTestReport,
)
from strategies.adasplit_replies import Exchange
from strategies.adasplit_report import round_report
from strategies.adasplit_server import Lessons, ServerTrainer, build_server
from strategies.adasplit_turns import Turn
from strategies.answers import Answer, Refusal
from strategies.member import Member
from strategies.metering import Meter, message_bytes
from strategies.traffic import Breakdown
from tests.strategies.adasplit_federation import (
    NOTHING,
    adasplit,
    evaluation,
    exchange,
    split_nodes,
    tiny_split,
)
from tests.strategies.federation import OK, Node, managed

GOOD = AdaSplitClientReport(
    *(0, 10, 100, 10, 1.5, 2.0, "", True, 0.5, 90.0, 0.9, 0.4),
    down=Breakdown(protocol=100, counted=88),
    up=Breakdown(protocol=10, counted=4),
)
IDLE = AdaSplitClientReport(1, 30, 50, 0, 0.5, 1.0, "", False)
BAD = AdaSplitClientReport(2, 0, 100, 7, math.nan, math.nan, "client 2: ill", True)


def test_figures_of_a_round() -> None:
    report = AdaSplitRoundReport(3, "global", [GOOD, IDLE, BAD], 0.5, 0.25)
    assert report.good == [GOOD, IDLE]
    assert report.metrics() == {
        "train_loss": 1.25,
        "train_seconds": 2.0,
        "downlink_bytes": 250,
        "uplink_bytes": 17,
        "downlink_bytes_counted": 88,
        "uplink_bytes_counted": 4,
        "replies": 2,
        "failures": 1,
        "restarts": 0,
        "picked": 2,
        "held_back": 0,
        "server_loss": 0.5,
        "server_seconds": 0.25,
        "mask_density": 0.4,
    }


def test_a_local_round_has_no_figures_of_the_server() -> None:
    metrics = AdaSplitRoundReport(1, "local", [IDLE], math.nan, 0.0).metrics()
    assert (metrics["picked"], metrics["train_loss"]) == (0, 1.0)
    np.testing.assert_equal([metrics["server_loss"], metrics["mask_density"]], [math.nan] * 2)


def test_figures_of_a_test() -> None:
    tests = [
        AdaSplitClientTest(0, 10, True, True, 0.5, 1.0, 100, 10),
        AdaSplitClientTest(1, 1000, True, False, 1.0, 0.5, 200, 20),
        AdaSplitClientTest(2, 10, False, False, 0.0, 3.0, 300, 30),
        AdaSplitClientTest(3, 0, True, True, math.nan, math.nan, 400, 0, "client 3: ill"),
    ]
    report = AdaSplitTestReport(7, tests)
    assert report.loss == 1.5  # each client counts once
    assert report.metrics() == {
        "accuracy": 0.5,
        "trained_accuracy": 0.75,
        "learned_accuracy": 0.5,
        "evaluation_downlink_bytes": 1000,
        "evaluation_uplink_bytes": 60,
        "evaluation_replies": 3,
        "evaluation_failures": 1,
    }
    assert math.isnan(AdaSplitTestReport(7, tests[3:]).loss)


def test_everybody_is_listed_with_what_the_server_made_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = build_server(tiny_split().server, AdaSplitSettings(), seed=0, folder=None)
    trainer = ServerTrainer(server, None, seed=0, keep_gradients=False)  # type: ignore[arg-type]
    monkeypatch.setattr(trainer, "density", lambda client: client / 10)
    trainer.seconds = 0.125
    meter, members = Meter(), [Member(Node(client), client) for client in (1, 3, 4, 6)]
    down = FitIns(NOTHING, {})
    up = FitRes(OK, NOTHING, 8, {"train_loss": 0.5, "train_seconds": 2, "client_memory_mb": 640})
    for member in members:
        meter.sent(member.partition_id, down)
    good = [Exchange(Answer(member, up), [], {}) for member in members[:3]]
    for member in members[:3]:
        meter.received(member.partition_id, up)
    turn = Turn("global", members, frozenset({1, 3, 6}), {1: (90.0, 1.0), 4: (80.0, 2.0)})
    lessons = {1: Lessons(loss=6.0, samples=8), 3: Lessons(failure="client 3: nan (batch 0)")}
    refusals = [Refusal(6, "client 6: ill"), Refusal(None, "ValueError: lost")]
    report = round_report(5, turn, good, refusals, meter, lessons, trainer, {1: 5})
    lost, first, third, fourth, sixth = report.clients
    size, reply = message_bytes(down), message_bytes(up)
    assert first == AdaSplitClientReport(
        *(1, 8, size, reply, 2.0, 0.5, "", True, 0.75, 90.0, 1.0, 0.1, 8, 5),
        client_memory_mb=640.0,
        down=Breakdown(protocol=size),
        up=Breakdown(protocol=reply),
    )
    assert (third.failure, third.picked, third.num_examples) == ("client 3: nan (batch 0)", True, 8)
    assert math.isnan(third.server_loss)
    assert (third.server_samples, third.gradient_samples) == (0, 0)
    assert math.isnan(third.mask_density)
    assert (fourth.picked, fourth.exploitation, fourth.exploration) == (False, 80.0, 2.0)
    assert (sixth.failure, sixth.picked, sixth.downlink_bytes) == ("client 6: ill", True, size)
    assert (lost.partition_id, lost.picked, lost.failure) == (None, False, "ValueError: lost")
    assert (report.server_round, report.phase, report.server_seconds) == (5, "global", 0.125)
    assert report.server_loss == 0.75


def test_the_loss_of_the_server_is_a_mean_over_samples() -> None:
    strategy, nodes = adasplit(selection="all"), split_nodes(2)
    played = exchange(strategy, managed(nodes), 1)
    one, two = played.report.clients
    assert played.report.server_loss == pytest.approx((one.server_loss + two.server_loss) / 2)
    assert one.mask_density == strategy.server.density(0)
    assert replace(one, mask_density=0.0).picked


@pytest.mark.parametrize("inference", ["client", "server"])
def test_no_message_outlives_its_round(inference: str) -> None:
    strategy = adasplit(inference=inference, client_weights="averaged")
    nodes = split_nodes(2)
    manager = managed(nodes)
    played, outcome = exchange(strategy, manager, 1), evaluation(strategy, manager, 1)
    messages: list[Any] = [weakref.ref(played.instructions[0]), weakref.ref(played.results[0])]
    messages += [weakref.ref(outcome.instructions[0]), weakref.ref(outcome.results[0])]
    del played, outcome
    for node in nodes:
        node.evaluated.clear()
    strategy.configure_fit(2, NOTHING, manager)
    gc.collect()
    assert [message() for message in messages] == [None] * 4
