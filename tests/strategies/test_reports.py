"""A round's report adds up, and lists everybody who was asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.common import FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters

from strategies.answers import Refusal
from strategies.mask_report import LayerReport
from strategies.member import Member
from strategies.metering import Meter, message_bytes
from strategies.replies import Reply
from strategies.reports import (
    BaselineRoundReport,
    ClientReport,
    RoundReport,
    client_reports,
    mean_of,
)
from strategies.traffic import NO_BYTES, Breakdown, break_down
from tests.strategies.federation import OK, Node
from zerofl_flwr.settings import ZeroFLSettings

PLAN = ZeroFLSettings().plan(3)
INSTRUCTIONS = FitIns(Parameters([b"12345"], ""), {})


def result(num_examples: int = 10, **metrics: Scalar) -> FitRes:
    arrays = ndarrays_to_parameters([np.array([0, 1, 2], np.float32)])
    return FitRes(OK, arrays, num_examples, {**metrics})


def good(partition_id: int, reply: FitRes) -> Reply:
    return Reply(Member(Node(partition_id), partition_id), reply)


def client(
    partition_id: int | None, num_examples: int, loss: float, failure: str = ""
) -> ClientReport:
    down, up = Breakdown(protocol=100, counted=80), Breakdown(protocol=10, counted=4)
    return ClientReport(partition_id, num_examples, 100, 10, 1.5, loss, failure, down=down, up=up)


def test_everybody_is_listed_in_partition_order_with_traffic() -> None:
    meter = Meter()
    for partition in (1, 2, 5):
        meter.sent(partition, INSTRUCTIONS)
    replies = [
        good(1, result(10, train_loss=0.5, train_seconds=2, client_memory_mb=750.5)),
        good(5, result(30, train_loss=0.25, train_seconds=3.5)),
    ]
    for reply in replies:
        meter.received(reply.member.partition_id, reply.result)
    refusals = [Refusal(2, "client 2: ill"), Refusal(None, "ValueError: lost")]
    down, up = message_bytes(INSTRUCTIONS), message_bytes(replies[0].result)
    lost, first, ill, last = client_reports(replies, refusals, meter)
    sent = break_down(INSTRUCTIONS.parameters.tensors, down)
    came = break_down(replies[0].result.parameters.tensors, up)
    assert first == ClientReport(
        1, 10, down, up, 2.0, 0.5, client_memory_mb=750.5, down=sent, up=came
    )
    assert (sent.weights, came.weights, came.counted) == (0, 12, 8)
    assert (ill.down, ill.up, lost.down) == (sent, NO_BYTES, NO_BYTES)
    assert (last.partition_id, last.num_examples, last.train_loss) == (5, 30, 0.25)
    assert last.uplink_bytes == message_bytes(replies[1].result)
    assert (ill.partition_id, ill.num_examples, ill.failure) == (2, 0, "client 2: ill")
    assert (ill.downlink_bytes, ill.uplink_bytes) == (down, 0)
    assert (lost.partition_id, lost.failure) == (None, "ValueError: lost")
    assert (lost.downlink_bytes, lost.uplink_bytes) == (0, 0)
    assert math.isnan(ill.train_seconds)
    assert math.isnan(last.client_memory_mb)
    assert math.isnan(lost.train_loss)


def test_a_refused_reply_has_cost_its_bytes() -> None:
    meter = Meter()
    meter.sent(2, INSTRUCTIONS)
    meter.received(2, result())
    (report,) = client_reports([], [Refusal(2, "client 2: NaN")], meter)
    assert report.uplink_bytes == message_bytes(result())


@pytest.mark.parametrize("loss", ["0.5", True, b"x", None])
def test_metrics_that_are_no_numbers_are_missing(loss: Scalar | None) -> None:
    names = ("train_loss", "train_seconds", "client_memory_mb")
    metrics: dict[str, Scalar] = {} if loss is None else dict.fromkeys(names, loss)
    (report,) = client_reports([good(1, result(10, **metrics))], [], Meter())
    np.testing.assert_equal([getattr(report, name) for name in names], [math.nan] * 3)


def test_figures_of_a_round() -> None:
    layers = [LayerReport("a", 300, 0.5, 1.0, 1.0), LayerReport("b", 100, 0.1, 0.2, 0.0)]
    clients = [client(0, 10, 1.0), client(1, 30, 2.0), client(2, 0, math.nan, "refused")]
    report = RoundReport(PLAN, clients, layers)
    assert report.good == clients[:2]
    assert report.metrics() == {
        "train_loss": 1.75,
        "train_seconds": 3.0,
        "downlink_bytes": 300,
        "uplink_bytes": 30,
        "downlink_bytes_counted": 240,
        "uplink_bytes_counted": 12,
        "replies": 2,
        "failures": 1,
        "nonzero_ratio": pytest.approx(0.4),
        "mask_overlap": pytest.approx(0.8),
    }


def test_a_round_without_good_replies_or_layers() -> None:
    report = RoundReport(PLAN, [client(2, 0, math.nan, "refused")], [])
    metrics = report.metrics()
    assert report.good == []
    assert (metrics["replies"], metrics["failures"]) == (0, 1)
    names = ("train_loss", "train_seconds", "nonzero_ratio", "mask_overlap")
    np.testing.assert_equal([metrics[name] for name in names], [math.nan] * 4)


def test_clients_that_do_not_tell_are_left_out_of_the_figures() -> None:
    silent = ClientReport(1, 30, 100, 10, math.nan, math.nan)
    clients = [client(0, 10, 1.0), silent, client(2, 30, 2.0)]
    report = RoundReport(PLAN, clients, [])
    assert (report.train_loss, report.train_seconds) == (1.75, 3.0)
    np.testing.assert_equal(report.metrics()["replies"], 3)
    unknown = RoundReport(PLAN, [silent], [])
    assert math.isnan(unknown.train_loss)
    assert math.isnan(unknown.train_seconds)


def test_means_leave_out_what_is_unknown() -> None:
    assert mean_of([1.0, math.nan, 2.0]) == 1.5
    assert math.isnan(mean_of([math.nan]))
    assert math.isnan(mean_of([]))


def test_a_client_may_tell_one_figure_and_not_the_other() -> None:
    no_seconds = ClientReport(0, 10, 100, 10, math.nan, 1.0)
    no_loss = ClientReport(1, 30, 100, 10, 2.5, math.nan)
    report = RoundReport(PLAN, [no_seconds, no_loss], [])
    assert (report.train_loss, report.train_seconds) == (1.0, 2.5)


def test_a_baselines_report_adds_up_like_zerofls() -> None:
    clients = [client(0, 10, 0.5), client(1, 30, 1.5), client(2, 0, math.nan, "client 2: ill")]
    report = BaselineRoundReport(4, clients, restarts=1)
    assert report.good == clients[:2]
    assert report.metrics() == {
        "train_loss": 1.25,
        "train_seconds": 3.0,
        "downlink_bytes": 300,
        "uplink_bytes": 30,
        "downlink_bytes_counted": 240,
        "uplink_bytes_counted": 12,
        "replies": 2,
        "failures": 1,
        "restarts": 1,
    }
    zerofl = RoundReport(PLAN, clients, []).metrics()
    assert report.metrics().items() - {("restarts", 1)} <= zerofl.items()
