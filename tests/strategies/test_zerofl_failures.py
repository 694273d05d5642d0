"""What fails in a round is named and counted, and leaves no other trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Status,
)
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg

from strategies import RoundReport
from tests.strategies.bad_replies import FAULTS, FROZEN_FAULTS, Fault
from tests.strategies.federation import (
    Node,
    honest_nodes,
    managed,
    partition_of,
    play,
    same_bits,
    zerofl,
)
from tests.strategies.standard import EXAMPLES, MODEL, honest_manager
from zerofl_flwr.errors import RoundFailedError


def spoiling(nodes: list[Node], partition: int, spoil: Callable[[FitRes], FitRes]) -> list[Node]:
    """Let one honest node spoil its replies."""
    honest = nodes[partition].train
    assert honest is not None
    nodes[partition].train = lambda ins: spoil(honest(ins))
    return nodes


def failing(nodes: list[Node], partition: int, error: Exception) -> list[Node]:
    def fail(ins: FitIns) -> FitRes:
        raise error

    nodes[partition].train = fail
    return nodes


@pytest.mark.parametrize("aggregation", ["all-clients", "senders"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_bad_reply_leaves_no_trace_but_its_failure(fault: Fault, aggregation: str) -> None:
    reports: list[RoundReport] = []
    nodes = spoiling(honest_nodes(MODEL, EXAMPLES), 2, fault.spoil)
    strategy = zerofl(FedAvg(), aggregation=aggregation, on_round=reports.append)
    played = play(strategy, managed(nodes), MODEL.parameters, 1)
    assert (played.metrics["replies"], played.metrics["failures"]) == (3, 1)
    failures = {client.partition_id: client.failure for client in reports[0].clients}
    assert [failures[partition] for partition in (0, 1, 3)] == ["", "", ""]
    assert failures[2].startswith("client 2")
    if fault.layer is not None:
        assert f"layer {fault.layer}" in failures[2]

    without = honest_nodes(MODEL, EXAMPLES)
    del without[2]
    alone = play(zerofl(FedAvg(), aggregation=aggregation), managed(without), MODEL.parameters, 1)
    assert same_bits(played.arrays, alone.arrays)
    assert strategy.model.masked == [0, 5]
    assert strategy.model.names == MODEL.names


@pytest.mark.parametrize("fault", FROZEN_FAULTS.values(), ids=FROZEN_FAULTS)
def test_a_bad_reply_in_a_frozen_round_leaves_no_trace(fault: Fault) -> None:
    ends = []
    for present in (True, False):
        nodes = honest_nodes(MODEL, EXAMPLES)
        strategy = zerofl(FedAvg(), rule="diff-on-top-k-weights", freeze_mask_after_round=1)
        first = play(strategy, managed(nodes), MODEL.parameters, 1)
        nodes = spoiling(nodes, 2, fault.spoil)
        if not present:
            del nodes[2]
        second = play(strategy, managed(nodes), first.parameters, 2)
        assert second.metrics["replies"] == 3
        ends.append(second.arrays)
    assert same_bits(ends[0], ends[1])


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_bad_reply_can_stop_the_run_instead(fault: Fault) -> None:
    nodes = spoiling(honest_nodes(MODEL, EXAMPLES), 2, fault.spoil)
    strategy = zerofl(FedAvg(), on_failure="raise")
    with pytest.raises(RoundFailedError, match=f"round 1: client 2.*{fault.layer or ''}"):
        play(strategy, managed(nodes), MODEL.parameters, 1)
    assert same_bits(strategy.model.arrays, MODEL.values)


@pytest.mark.parametrize(("min_replies", "fails"), [(1, False), (3, False), (4, True)])
def test_a_round_needs_its_least_number_of_replies(min_replies: int, fails: bool) -> None:
    nodes = spoiling(honest_nodes(MODEL, EXAMPLES), 2, FAULTS["another round"].spoil)
    strategy = zerofl(FedAvg(), min_replies=min_replies)
    if not fails:
        play(strategy, managed(nodes), MODEL.parameters, 1)
        return
    with pytest.raises(
        RoundFailedError, match=r"round 1: 3 good replies, 4 needed\. client 2, field"
    ):
        play(strategy, managed(nodes), MODEL.parameters, 1)
    assert same_bits(strategy.model.arrays, MODEL.values)


def test_a_round_in_which_all_fail_is_an_error() -> None:
    nodes = honest_nodes(MODEL, EXAMPLES)
    for partition, name in enumerate(["no samples", "garbage", "another rule"]):
        spoiling(nodes, partition, FAULTS[name].spoil)
    failing(nodes, 3, ValueError("out of memory"))
    strategy = zerofl(FedAvg())
    with pytest.raises(RoundFailedError) as caught:
        play(strategy, managed(nodes), MODEL.parameters, 1)
    assert str(caught.value).startswith("round 1: 0 good replies, 1 needed. client ")
    for partition in range(4):
        assert f"client {partition}" in str(caught.value)
    assert same_bits(strategy.model.arrays, MODEL.values)


def test_a_round_nobody_answers_is_an_error() -> None:
    strategy = zerofl(FedAvg())
    strategy.configure_fit(1, MODEL.parameters, honest_manager())
    with pytest.raises(RoundFailedError, match="client 0: no reply; client 1: no reply; client 2"):
        strategy.aggregate_fit(1, [], [])


def test_a_failed_round_can_be_tried_again() -> None:
    # Nothing of it stays: not its clients, not its bytes.
    reports: list[RoundReport] = []
    nodes = honest_nodes(MODEL, EXAMPLES)
    strategy = zerofl(FedAvg(), min_replies=4, on_round=reports.append)
    honest = nodes[1].train
    failing(nodes, 1, ValueError("out of memory"))
    with pytest.raises(RoundFailedError):
        play(strategy, managed(nodes), MODEL.parameters, 1)
    nodes[1].train = honest
    played = play(strategy, managed(nodes), MODEL.parameters, 1)
    fresh = play(zerofl(FedAvg()), honest_manager(), MODEL.parameters, 1)
    assert same_bits(played.arrays, fresh.arrays)
    np.testing.assert_equal(played.metrics, fresh.metrics)
    assert len(reports) == 1


def test_failures_are_reported_with_and_without_names(flower_log: pytest.LogCaptureFixture) -> None:
    reports: list[RoundReport] = []
    nodes = honest_nodes(MODEL, [10] * 6)
    failing(nodes, 1, ValueError("out of memory"))
    sick = nodes[3].train
    assert sick is not None
    not_ok = Status(Code.FIT_NOT_IMPLEMENTED, "cannot train")

    def refuse(ins: FitIns) -> FitRes:
        result = sick(ins)
        return FitRes(not_ok, result.parameters, result.num_examples, result.metrics)

    nodes[3].train = refuse
    strategy = zerofl(FedAvg(), on_round=reports.append)
    pairs = strategy.configure_fit(1, MODEL.parameters, managed(nodes))
    results: list[tuple[ClientProxy, FitRes]] = []
    failures: list[Any] = []
    for client, ins in pairs:
        try:
            result = client.fit(ins, None, 1)
        except Exception as error:
            failures.append(error)
            continue
        (results if result.status.code == Code.OK else failures).append((client, result))
    lost = [index for index, (client, _) in enumerate(results) if partition_of(client) in (4, 5)]
    results = [pair for index, pair in enumerate(results) if index not in lost]
    failures.append(RuntimeError("the line broke"))
    strategy.aggregate_fit(1, results, failures)
    failed = {c.partition_id: c.failure for c in reports[0].clients if c.failure}
    either = "no reply, or one of these failures without a name: RuntimeError: the line broke"
    assert failed == {
        1: "client 1: out of memory",
        3: "client 3: cannot train",
        4: f"client 4: {either}",
        5: f"client 5: {either}",
    }
    assert reports[0].metrics()["failures"] == 4
    assert "round 1: client 1: out of memory" in flower_log.text


def test_failures_of_one_round_are_not_those_of_the_next() -> None:
    reports: list[RoundReport] = []
    nodes = honest_nodes(MODEL, EXAMPLES)
    honest = nodes[2].train
    strategy = zerofl(FedAvg(), on_round=reports.append)
    failing(nodes, 2, ValueError("out of memory"))
    first = play(strategy, managed(nodes), MODEL.parameters, 1)
    nodes[2].train = honest
    second = play(strategy, managed(nodes), first.parameters, 2)
    assert [first.metrics["failures"], second.metrics["failures"]] == [1, 0]
    assert reports[1].clients[2].failure == ""
    assert reports[1].clients[2].uplink_bytes > 0


def test_a_wrapped_strategy_may_accept_no_failures() -> None:
    nodes = spoiling(honest_nodes(MODEL, EXAMPLES), 2, FAULTS["garbage"].spoil)
    strategy = zerofl(FedAvg(accept_failures=False))
    message = "round 1: FedAvg made no model of 3 good replies and 1 failures"
    with pytest.raises(RoundFailedError, match=message):
        play(strategy, managed(nodes), MODEL.parameters, 1)
    play(strategy, honest_manager(), MODEL.parameters, 1)
