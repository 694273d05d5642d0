"""AdaSplit as Flower runs it: its own server loop, messages, records and client state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from flwr.client import Client, ClientApp
from flwr.server import ServerApp, ServerAppComponents, ServerConfig

from adasplit_flwr import AdaSplitClient, ShuffledBatches
from simulations.in_process import run_in_process
from strategies import AdaSplitRoundReport, AdaSplitTestReport
from tests.strategies.adasplit_federation import (
    BATCH,
    adasplit,
    evaluation,
    exchange,
    samples_of,
    split_nodes,
    tiny_split,
)
from tests.strategies.federation import managed


def client_fn(context: Context) -> Client:
    partition_id = int(context.node_config["partition-id"])
    batches = ShuffledBatches(samples_of(partition_id), BATCH)
    return AdaSplitClient(
        tiny_split(seed=99),
        batches,
        list(batches.batches_from(0, 0)),
        partition_id=partition_id,
        state=context.state,
    ).to_client()


def run(**options: Any) -> tuple[list[AdaSplitRoundReport], list[AdaSplitTestReport], bytes]:
    rounds: list[AdaSplitRoundReport] = []
    tests: list[AdaSplitTestReport] = []
    strategy = adasplit(rounds=4, on_round=rounds.append, on_test=tests.append, **options)

    def server_fn(_: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=4))

    run_in_process(ServerApp(server_fn=server_fn), ClientApp(client_fn), num_clients=3)
    state = strategy.server.shared_state()
    return rounds, tests, b"".join(array.tobytes() for array in state.values())


@pytest.mark.parametrize(
    "options",
    [
        {"kappa": 0.5, "eta": 0.6},
        {"client_weights": "averaged", "server_gradient": "selected", "inference": "server"},
    ],
)
def test_a_run_under_flower_is_the_one_of_the_other_tests(options: dict[str, Any]) -> None:
    rounds, tests, weights = run(**options)
    assert [report.metrics()["failures"] for report in rounds] == [0] * 4
    assert [report.metrics()["evaluation_failures"] for report in tests] == [0] * 4
    strategy, manager = adasplit(rounds=4, **options), managed(split_nodes(3))
    for server_round in range(1, 5):
        played = exchange(strategy, manager, server_round)
        outcome = evaluation(strategy, manager, server_round)
        report, test = rounds[server_round - 1], tests[server_round - 1]
        assert [c.picked for c in report.clients] == [c.picked for c in played.report.clients]
        np.testing.assert_equal(report.server_loss, played.report.server_loss)
        assert [(c.accuracy, c.loss) for c in test.clients] == [
            (c.accuracy, c.loss) for c in outcome.report.clients
        ]
        assert [c.downlink_bytes for c in report.clients] == [
            c.downlink_bytes for c in played.report.clients
        ]
    state = strategy.server.shared_state()
    assert weights == b"".join(array.tobytes() for array in state.values())


def test_masks_in_a_file_train_the_same(tmp_path: Path) -> None:
    _, _, in_memory = run(selection="all")
    rounds, _, in_file = run(selection="all", folder=tmp_path, mask_memory_mb=1)
    assert in_file == in_memory
    assert len(rounds) == 4
