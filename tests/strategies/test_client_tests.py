"""Tests by clients: checked, counted once each, failures by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from flwr.common import Code, EvaluateIns, EvaluateRes, Parameters, Status

from strategies import ClientTest, ClientTestReport
from strategies.answers import Answer
from strategies.client_tests import read_tests, read_told
from strategies.member import Member, MemberFailedError
from strategies.metering import Meter, message_bytes
from tests.strategies.federation import OK, Node
from zerofl_flwr.errors import PayloadError

MESSAGE = EvaluateIns(Parameters([b"12345"], ""), {})


def member(partition_id: int) -> Member:
    return Member(Node(partition_id), partition_id)


def said(loss: Any = 0.5, samples: Any = 10, **metrics: Any) -> EvaluateRes:
    return EvaluateRes(OK, loss, samples, {"accuracy": 0.25, **metrics})


def test_the_report_lists_everybody_and_averages_over_clients() -> None:
    meter = Meter()
    asked = [member(partition) for partition in (0, 1, 2, 3, 4)]
    for client in asked:
        meter.sent(client.partition_id, MESSAGE)
    good = {0: said(1.0, 10, accuracy=0.5), 3: said(2.0, 990, accuracy=0.75)}
    for partition, result in good.items():
        meter.received(partition, result)
    results = [(asked[3], good[3]), (asked[1], said(math.nan)), (asked[0], good[0])]
    report, replies = read_tests(
        7, asked, meter, results, [MemberFailedError(4, "ill")], lambda client: client != 3
    )
    assert [reply.member.partition_id for reply in replies] == [0, 3]
    down = message_bytes(MESSAGE)
    assert report.clients[0] == ClientTest(0, 10, True, 0.5, 1.0, down, message_bytes(good[0]))
    assert report.clients[3] == ClientTest(3, 990, False, 0.75, 2.0, down, message_bytes(good[3]))
    assert [test.failure for test in report.clients] == [
        "",
        "client 1, field loss: expected a finite number, got nan",
        "client 2: no reply",
        "",
        "client 4: ill",
    ]
    assert all(math.isnan(test.accuracy) for test in report.clients if test.failure)
    assert report.server_round == 7
    assert report.metrics() == {
        "accuracy": 0.625,
        "trained_accuracy": 0.5,
        "evaluation_downlink_bytes": 5 * down,
        "evaluation_uplink_bytes": sum(map(message_bytes, good.values())),
        "evaluation_replies": 2,
        "evaluation_failures": 3,
    }
    assert report.loss == 1.5


def test_failures_without_a_name_come_first_and_cost_nothing() -> None:
    failed = EvaluateRes(Status(Code.EVALUATE_NOT_IMPLEMENTED, "no data"), 0.0, 0, {})
    report, good = read_tests(1, [], Meter(), [], [(member(2), failed), ValueError("lost")])
    assert good == []
    assert [(t.partition_id, t.failure, t.trained) for t in report.clients] == [
        (None, "ValueError: lost", False),
        (2, "client 2: no data", True),
    ]
    assert math.isnan(report.accuracy)
    assert math.isnan(report.loss)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (said(math.inf), "client 5, field loss: expected a finite number, got inf"),
        (said("1"), "client 5, field loss: expected a finite number, got '1'"),
        (said(samples=0), "client 5, field num_examples: num_examples is 0"),
        (said(accuracy=1.5), "client 5, field accuracy: 1.5 is not between 0 and 1"),
        (said(accuracy=-0.1), "client 5, field accuracy: -0.1 is not between 0 and 1"),
        (said(accuracy=math.nan), "client 5, field accuracy: expected a finite number, got nan"),
        (said(accuracy=True), "client 5, field accuracy: expected a finite number, got True"),
    ],
)
def test_what_no_test_can_say_is_refused(result: EvaluateRes, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        read_told(Answer(member(5), result))
    assert str(caught.value).startswith(message)


def test_an_accuracy_need_not_be_told_unless_it_is_required() -> None:
    silent = Answer(member(5), EvaluateRes(OK, -2.5, 3, {}))
    accuracy, loss = read_told(silent)
    assert math.isnan(accuracy)
    assert loss == -2.5
    message = "client 5, field accuracy: expected a finite number, got None"
    with pytest.raises(PayloadError, match=message):
        read_told(silent, required=True)
    untold = ClientTest(5, 3, True, math.nan, 1.0, 0, 0)
    told = ClientTest(6, 3, True, 0.5, 2.0, 0, 0)
    report = ClientTestReport(1, [untold, told])
    assert (report.accuracy, report.loss) == (0.5, 1.5)
