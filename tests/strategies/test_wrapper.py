"""What ZeroFL and Baseline share: the first model, who is sampled, and clients' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.common import Code, EvaluateRes, Scalar, Status
from flwr.server.strategy import FedAvg

from strategies import Baseline, ClientTestReport, ZeroFL
from strategies.wrapper import Wrapper
from tests.strategies.federation import OK, Node, managed, partition_of, toy
from tests.strategies.standard import MODEL, honest_manager
from zerofl_flwr.errors import ClientFailedError, RoundFailedError, SettingsError

Kind = Callable[..., Wrapper]
both = pytest.mark.parametrize("kind", [ZeroFL, Baseline])


@both
def test_the_initial_model_is_the_wrapped_strategys(kind: Kind) -> None:
    strategy = kind(FedAvg(initial_parameters=MODEL.parameters))
    parameters = strategy.initialize_parameters(managed([Node(1), Node(2)]))
    assert parameters is not None
    assert parameters.tensors == MODEL.parameters.tensors


@both
def test_or_the_first_partitions(kind: Kind) -> None:
    nodes = [Node(5, cid="1"), Node(3, cid="2"), Node(4, cid="3")]
    parameters = kind(FedAvg()).initialize_parameters(managed(nodes))
    assert parameters is not None
    assert parameters.tensors == toy(seed=102).parameters.tensors
    assert nodes[1].time_to_tell_model == 600  # a node that hangs must not hold up the run for good


@both
def test_a_first_model_with_other_arrays_than_the_names_is_refused(kind: Kind) -> None:
    strategy = kind(FedAvg(), array_names=["one"])
    with pytest.raises(SettingsError, match="has 1 names, but the model has 4 arrays"):
        strategy.initialize_parameters(managed([Node(1), Node(2)]))


@both
def test_a_client_that_has_no_model_is_named(kind: Kind) -> None:
    cannot = Status(Code.GET_PARAMETERS_NOT_IMPLEMENTED, "not implemented")
    nodes = [Node(0), Node(1)]
    strategy = kind(FedAvg())
    manager = managed(nodes)
    strategy.configure_fit(1, MODEL.parameters, manager)  # they tell their partitions
    nodes[0].status = cannot
    with pytest.raises(ClientFailedError, match="client 0 did not tell the initial model: not imp"):
        strategy.initialize_parameters(manager)


def chosen(kind: Kind, seed: int, server_round: int) -> list[int]:
    manager = honest_manager(examples=[10] * 20)
    strategy = kind(FedAvg(fraction_fit=0.3), seed=seed)
    pairs = strategy.configure_fit(server_round, MODEL.parameters, manager)
    return [partition_of(client) for client, _ in pairs]


@both
def test_sampling_follows_seed_and_round(kind: Kind) -> None:
    drawn = chosen(kind, 1, 1)
    assert drawn == chosen(kind, 1, 1) == sorted(drawn)
    several = {tuple(chosen(kind, seed, number)) for seed in (1, 2) for number in (1, 2, 3)}
    assert len(several) == 6


def test_methods_are_compared_with_the_same_clients() -> None:
    rounds = range(1, 6)
    assert [chosen(ZeroFL, 9, t) for t in rounds] == [chosen(Baseline, 9, t) for t in rounds]


@both
def test_a_round_without_clients_is_an_error(kind: Kind) -> None:
    strategy = kind(FedAvg(min_fit_clients=5, min_available_clients=2))
    with pytest.raises(RoundFailedError, match="round 3: no clients could be sampled from 4 avail"):
        strategy.configure_fit(3, MODEL.parameters, honest_manager())


@both
def test_tests_are_averaged_in_partition_order(kind: Kind) -> None:
    seen: list[list[int]] = []

    def note(metrics: list[tuple[int, dict[str, Scalar]]]) -> dict[str, Scalar]:
        seen.append([count for count, _ in metrics])
        return {"accuracy": 0.5}

    strategy = kind(FedAvg(evaluate_metrics_aggregation_fn=note))
    strategy.configure_fit(1, MODEL.parameters, honest_manager())
    pairs = strategy.configure_evaluate(1, MODEL.parameters, honest_manager())
    results = [
        (client, EvaluateRes(OK, 1.0 * partition, 10 + partition, {}))
        for partition, (client, _) in enumerate(pairs)
    ]
    results_out_of_order = [results[index] for index in (2, 0, 3, 1)]
    lost: list[Any] = [ValueError("lost")]
    loss, metrics = strategy.aggregate_evaluate(1, results_out_of_order, lost)
    assert seen == [[10, 11, 12, 13]]
    assert loss == pytest.approx((0 * 10 + 1 * 11 + 2 * 12 + 3 * 13) / 46)
    assert metrics["accuracy"] == 0.5  # what the strategy makes of the tests, not our own mean
    assert (metrics["evaluation_replies"], metrics["evaluation_failures"]) == (4, 1)
    assert metrics["evaluation_downlink_bytes"] == metrics["evaluation_uplink_bytes"] == 0


@both
def test_tests_are_told_one_by_one_and_bad_ones_are_left_out(kind: Kind) -> None:
    reports: list[ClientTestReport] = []
    count = FedAvg(evaluate_metrics_aggregation_fn=lambda metrics: {"told": len(metrics)})
    strategy = kind(count, on_test=reports.append)
    pairs = strategy.configure_evaluate(1, MODEL.parameters, honest_manager())
    losses = [0.5, float("nan"), 1.5]
    results = [
        (client, EvaluateRes(OK, loss, 10, {"accuracy": 0.25}))
        for (client, _), loss in zip(pairs, losses, strict=False)
    ]
    loss, metrics = strategy.aggregate_evaluate(1, results, [])
    assert (loss, metrics["told"]) == (1.0, 2)
    (report,) = reports
    assert [test.accuracy for test in report.good] == [0.25, 0.25]
    assert [bool(test.failure) for test in report.clients] == [False, True, False, True]
    assert "client 1, field loss" in report.clients[1].failure
    assert report.clients[3].failure == "client 3: no reply"


@both
def test_the_server_evaluates_as_the_wrapped_strategy_does(kind: Kind) -> None:
    tested = FedAvg(evaluate_fn=lambda number, arrays, _: (number + len(arrays), {"a": 1}))
    assert kind(tested).evaluate(3, MODEL.parameters) == (10, {"a": 1})
    assert kind(FedAvg()).evaluate(3, MODEL.parameters) is None


@both
def test_tests_come_every_so_many_rounds_and_in_the_last(kind: Kind) -> None:
    strategy = kind(FedAvg(), evaluate_every=3, last_round=7)
    manager, parameters = honest_manager(), MODEL.parameters
    strategy.configure_fit(1, parameters, manager)
    tested = [t for t in range(1, 9) if strategy.configure_evaluate(t, parameters, manager)]
    assert tested == [3, 6, 7]


@both
@pytest.mark.parametrize("every", [0, 1.0, True])
def test_an_interval_that_cannot_be_is_refused(kind: Kind, every: Any) -> None:
    message = f"evaluate_every is {every!r}; it must be a whole number from 1"
    with pytest.raises(SettingsError, match=message):
        kind(FedAvg(), evaluate_every=every)
