"""Tests by clients under a baseline: when they come, and what is reported of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from flwr.common import EvaluateRes
from flwr.server.strategy import FedAvg

from strategies import Alone, Baseline, ClientTestReport
from strategies.metering import message_bytes
from tests.strategies.dense_federation import PARAMETERS, fit_res
from tests.strategies.federation import OK, Node, managed, play


class TestingNode(Node):
    """A node that answers tests with a loss, a number of samples and an accuracy."""

    __test__ = False

    def __init__(self, partition_id: int, loss: float, samples: int, accuracy: float) -> None:
        super().__init__(partition_id, cid=str(700 + partition_id))
        self.outcome = EvaluateRes(OK, loss, samples, {"accuracy": accuracy})

    def evaluate(self, ins: Any, timeout: float | None, group_id: int | None) -> EvaluateRes:
        self.evaluated.append(ins)
        return self.outcome


def played_test(strategy: Baseline, nodes: Sequence[Node], server_round: int) -> Any:
    pairs = strategy.configure_evaluate(server_round, PARAMETERS, managed(nodes))
    results: Any = [(client, client.evaluate(ins, None, None)) for client, ins in pairs]
    return strategy.aggregate_evaluate(server_round, results[::-1], [])


def test_a_test_is_reported_with_each_client_counting_once() -> None:
    reports: list[ClientTestReport] = []
    inner = FedAvg(min_evaluate_clients=3, evaluate_metrics_aggregation_fn=lambda told: {"n": 1})
    strategy = Baseline(inner, on_test=reports.append)
    nodes = [
        TestingNode(0, 1.0, 10, 0.5),
        TestingNode(1, 2.0, 990, 1.0),
        TestingNode(2, math.nan, 10, 0.75),
    ]
    loss, metrics = played_test(strategy, nodes, 1)
    (report,) = reports
    assert (report.accuracy, report.trained_accuracy, report.loss) == (0.75, 0.75, 1.5)
    assert loss == pytest.approx(1.99)  # the strategy's own, over samples
    assert (metrics["n"], metrics["accuracy"], metrics["evaluation_failures"]) == (1, 0.75, 1)
    down = message_bytes(nodes[0].evaluated[0])
    assert metrics["evaluation_downlink_bytes"] == 3 * down
    assert "field loss: expected a finite number" in report.clients[2].failure


def test_who_trains_alone_is_tested_as_trained_once_it_has() -> None:
    reports: list[ClientTestReport] = []
    strategy = Baseline(Alone(min_fit_clients=1, fraction_fit=0.0), on_test=reports.append, seed=1)
    nodes = [TestingNode(p, 1.0, 10, 0.5 if p else 1.0) for p in range(2)]
    for trainer in nodes:
        trainer.train = lambda ins: fit_res([], 10, round=1)
    played = play(strategy, managed(nodes), PARAMETERS, 1)
    (who,) = played.results
    played_test(strategy, nodes, 1)
    assert [test.trained for test in reports[0].clients] == [p == who for p in range(2)]
    assert reports[0].trained_accuracy == (0.5 if who else 1.0)
