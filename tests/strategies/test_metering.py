"""Bytes are those of the message that Flower serializes, and each message is measured once."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    ndarrays_to_parameters,
)
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.server import evaluate_clients
from flwr.server.strategy import FedAvg, FedProx

from strategies import ClientTestReport, ZeroFL, metering
from strategies.member import Member
from strategies.metering import Meter, Traffic, message_bytes
from strategies.traffic import break_down
from tests.strategies.federation import OK, Node, honest_nodes, managed, play, toy


def serialized(record: RecordDict) -> int:
    return len(recorddict_to_proto(record).SerializeToString())


def instructions(size: int = 10, **config: float) -> FitIns:
    return FitIns(ndarrays_to_parameters([np.arange(size, dtype=np.float32)]), {**config})


def reply(size: int, **metrics: float) -> FitRes:
    return FitRes(OK, ndarrays_to_parameters([np.zeros(size, np.int8)]), 3, {**metrics})


def traffic_of(down: FitIns, up: FitRes | None = None) -> Traffic:
    """Of a message in training, and of its reply if one came."""
    size = message_bytes(down)
    traffic = Traffic(size, down=break_down(down.parameters.tensors, size))
    if up is None:
        return traffic
    size = message_bytes(up)
    return replace(traffic, uplink_bytes=size, up=break_down(up.parameters.tensors, size))


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_bytes_are_those_of_the_protobuf(size: int) -> None:
    down, up = instructions(size, rate=0.1), reply(size, loss=0.5)
    assert message_bytes(down) == serialized(compat.fitins_to_recorddict(down, keep_input=True))
    assert message_bytes(up) == serialized(compat.fitres_to_recorddict(up, keep_input=True))
    assert message_bytes(down) > 4 * size
    assert message_bytes(up) > size


def test_measuring_leaves_the_message_as_it_is() -> None:
    down, up = instructions(), reply(5)
    tensors = list(down.parameters.tensors), list(up.parameters.tensors)
    message_bytes(down)
    message_bytes(up)
    assert (down.parameters.tensors, up.parameters.tensors) == tensors


def test_a_message_to_many_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[metering.Instructions | metering.Result] = []

    def counting(content: metering.Instructions | metering.Result) -> int:
        measured.append(content)
        return message_bytes(content)

    monkeypatch.setattr(metering, "message_bytes", counting)
    meter, shared, other = Meter(), instructions(), instructions(2000)
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda client: meter.sent(client, shared), range(50)))
    meter.sent(50, other)
    assert len(measured) == 2
    assert meter.of(7) == traffic_of(shared)
    assert meter.of(50) == traffic_of(other)
    assert meter.of(7).down is meter.of(8).down
    assert (meter.of(7).down.weights, meter.of(50).down.weights) == (40, 8000)


def test_traffic_of_a_client() -> None:
    meter, down, up = Meter(), instructions(), reply(5)
    assert meter.of(3) == Traffic(0, 0)
    meter.sent(3, down)
    assert meter.of(3) == traffic_of(down)
    meter.received(3, up)
    assert meter.of(3) == traffic_of(down, up)
    assert (meter.of(3).down.weights, meter.of(3).up.weights) == (40, 5)
    assert meter.of(4) == Traffic(0, 0)


def test_a_member_meters_its_training() -> None:
    member, down, up = Member(Node(4, lambda _: up), 4), instructions(), reply(5)
    assert member.fit(down, None, None) is up  # without a meter, too
    meter = member.meter = Meter()
    assert member.fit(down, None, None) is up
    assert meter.of(4) == traffic_of(down, up)


def test_a_client_that_fails_had_its_downlink() -> None:
    def fail(ins: FitIns) -> FitRes:
        raise ValueError("out of memory")

    member, down = Member(Node(4, fail), 4), instructions()
    meter = member.meter = Meter()
    with pytest.raises(Exception, match="client 4: out of memory"):
        member.fit(down, None, None)
    assert meter.of(4) == traffic_of(down)


def test_a_reply_that_cannot_be_a_message_fails_by_name() -> None:
    up = FitRes(OK, Parameters([], ""), 3, {"losses": None})  # type: ignore[dict-item]
    member = Member(Node(4, lambda _: up), 4)
    member.meter = Meter()
    with pytest.raises(Exception, match="client 4: "):
        member.fit(instructions(), None, None)


@pytest.mark.parametrize("strategy", [FedAvg(), FedProx(proximal_mu=0.1)])
def test_a_round_reports_what_was_serialized(strategy: FedAvg) -> None:
    model = toy()
    zerofl = ZeroFL(strategy, sparsity=0.9, mask_ratio=0.0)
    played = play(zerofl, managed(honest_nodes(model, [5, 10, 15])), model.parameters, 1)
    downlink = sum(
        serialized(compat.fitins_to_recorddict(ins, keep_input=True))
        for ins in played.instructions.values()
    )
    uplink = sum(
        serialized(compat.fitres_to_recorddict(result, keep_input=True))
        for result in played.results.values()
    )
    assert played.metrics["downlink_bytes"] == downlink
    assert played.metrics["uplink_bytes"] == uplink


def test_no_message_outlives_its_round() -> None:
    # Each round samples one client of eight: the others keep what they had from earlier rounds.
    model = toy()
    strategy = ZeroFL(FedAvg(min_fit_clients=1, fraction_fit=0.0), sparsity=0.9, mask_ratio=0.0)
    manager, parameters = managed(honest_nodes(model, [10] * 8)), model.parameters
    messages = []
    for server_round in range(1, 7):
        played = play(strategy, manager, parameters, server_round)
        parameters = played.parameters
        messages.append(weakref.ref(next(iter(played.instructions.values()))))
        del played
    strategy.configure_evaluate(6, parameters, manager)
    gc.collect()
    assert [message() for message in messages] == [None] * 6


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_000, 16_383, 16_384, 2_097_152])
def test_hollow_measuring_gives_the_bytes_of_the_full_message(size: int) -> None:
    tensors = [b"x" * size, b"", b"y" * (size // 2), b"z" * 90]
    parameters = Parameters(tensors, "numpy.ndarray")
    down = FitIns(parameters, {"learning-rate": 0.1})
    up = FitRes(OK, parameters, 12, {"train_loss": 0.5})
    full_down = recorddict_to_proto(compat.fitins_to_recorddict(down, keep_input=True))
    full_up = recorddict_to_proto(compat.fitres_to_recorddict(up, keep_input=True))
    assert message_bytes(down) == len(full_down.SerializeToString())
    assert message_bytes(up) == len(full_up.SerializeToString())


def test_a_message_without_tensors_is_measured() -> None:
    down = FitIns(Parameters([], ""), {})
    full = recorddict_to_proto(compat.fitins_to_recorddict(down, keep_input=True))
    assert message_bytes(down) == len(full.SerializeToString())


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, 300_000])
def test_messages_of_a_test_are_measured_as_they_are_serialized(size: int) -> None:
    tensors = [b"x" * size, b"y" * (size // 2)]
    down = EvaluateIns(Parameters(tensors, "numpy.ndarray"), {"round": 3})
    up = EvaluateRes(OK, 0.5, 12, {"accuracy": 0.25, "payload-0": b"z" * size})
    assert message_bytes(down) == serialized(
        compat.evaluateins_to_recorddict(down, keep_input=True)
    )
    assert message_bytes(up) == serialized(compat.evaluateres_to_recorddict(up))
    assert down.parameters.tensors == tensors
    assert message_bytes(up) > size


def test_a_member_meters_its_tests() -> None:
    node, down = Node(4), EvaluateIns(instructions().parameters, {})
    member = Member(node, 4)
    up = member.evaluate(down, None, None)  # without a meter, too
    meter = member.meter = Meter()
    assert member.evaluate(down, None, None) == up
    assert node.evaluated == [down, down]
    assert meter.of(4) == Traffic(message_bytes(down), message_bytes(up))


def test_the_traffic_of_all_clients_comes_in_partition_order() -> None:
    meter, down, up = Meter(), instructions(), reply(5)
    for client in (7, 2):
        meter.sent(client, down)
    meter.received(7, up)
    assert meter.traffic() == {2: traffic_of(down), 7: traffic_of(down, up)}
    assert list(meter.traffic()) == [2, 7]


def test_zerofl_tells_the_bytes_of_a_test_apart_from_the_rounds() -> None:
    model = toy()
    reports: list[ClientTestReport] = []
    manager = managed(honest_nodes(model, [5, 10, 15]))
    strategy = ZeroFL(FedAvg(), sparsity=0.9, on_test=reports.append)
    played = play(strategy, manager, model.parameters, 1)
    pairs = strategy.configure_evaluate(1, played.parameters, manager)
    results, failures = evaluate_clients(pairs, max_workers=2, timeout=None, group_id=1)
    _, metrics = strategy.aggregate_evaluate(1, results, failures)
    assert len(reports) == 1
    told = {client.partition_id: client for client in reports[0].clients}
    assert [told[p].downlink_bytes for p in range(3)] == [message_bytes(ins) for _, ins in pairs]
    by_node = sorted(results, key=lambda pair: pair[0].cid)
    assert [told[p].uplink_bytes for p in range(3)] == [message_bytes(res) for _, res in by_node]
    for way in ("down", "up"):
        measured = [getattr(client, f"{way}link_bytes") for client in reports[0].clients]
        assert metrics[f"evaluation_{way}link_bytes"] == sum(measured) > 0
    down, up = (played.metrics[f"{way}link_bytes"] for way in ("down", "up"))
    assert down == sum(message_bytes(ins) for ins in played.instructions.values())
    assert up == sum(message_bytes(result) for result in played.results.values())


def test_no_test_message_outlives_its_test() -> None:
    model, strategy = toy(), ZeroFL(FedAvg(), sparsity=0.9)
    manager = managed(honest_nodes(model, [5, 10]))
    played = play(strategy, manager, model.parameters, 1)
    pairs = strategy.configure_evaluate(1, played.parameters, manager)
    message = weakref.ref(pairs[0][1])
    results, failures = evaluate_clients(pairs, max_workers=2, timeout=None, group_id=1)
    strategy.aggregate_evaluate(1, results, failures)
    del pairs, results
    for node in manager.all().values():
        assert isinstance(node, Node)
        node.evaluated.clear()
    strategy.configure_fit(2, played.parameters, manager)
    gc.collect()
    assert message() is None
