"""Flower apps without Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.compat import start_grid
from flwr.server.history import History
from flwr.server.strategy import FedAvg
from flwr.serverapp import Grid
from numpy.typing import NDArray

from simulations.in_process import InProcessGrid, run_in_process

Arrays = list[NDArray[Any]]


class Counter(NumPyClient):
    """Adds its partition id plus one to the weights, and counts its rounds in the context."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def fit(
        self, parameters: Arrays, config: dict[str, Scalar]
    ) -> tuple[Arrays, int, dict[str, Scalar]]:
        record = self.context.state.config_records.setdefault("own", ConfigRecord({"rounds": 0}))
        rounds = cast(int, record["rounds"]) + 1
        record["rounds"] = rounds
        partition_id = int(self.context.node_config["partition-id"])
        metrics: dict[str, Scalar] = {"rounds": rounds, "partition": partition_id}
        return [array + partition_id + 1 for array in parameters], 10, metrics


class Collecting(FedAvg):
    """Keeps what came back in each round."""

    def __init__(self, clients: int) -> None:
        super().__init__(
            min_fit_clients=clients,
            min_available_clients=clients,
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters([np.zeros(2)]),
            fit_metrics_aggregation_fn=lambda _: {},
        )
        self.metrics: list[list[dict[str, Scalar]]] = []
        self.failures: list[list[str]] = []
        self.weights: Arrays = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.metrics.append([result.metrics for _, result in results])
        self.failures.append([str(failure) for failure in failures])
        outcome = super().aggregate_fit(server_round, results, failures)
        if outcome[0] is not None:
            self.weights = parameters_to_ndarrays(outcome[0])
        return outcome


def server_of(strategy: FedAvg, rounds: int) -> ServerApp:
    config = ServerConfig(num_rounds=rounds)
    return ServerApp(server_fn=lambda _: ServerAppComponents(strategy=strategy, config=config))


def client_app(make: Callable[[Context], NumPyClient]) -> ClientApp:
    def client_fn(context: Context) -> Client:
        return make(context).to_client()

    return ClientApp(client_fn)


def test_a_classic_app_runs_all_its_rounds() -> None:
    strategy = Collecting(3)
    run_in_process(server_of(strategy, 2), client_app(Counter), 3)
    # Each round adds the mean of 1, 2 and 3; plain FedAvg sums in the order of arrival.
    assert strategy.weights[0].tolist() == pytest.approx([4.0, 4.0])
    assert strategy.failures == [[], []]


def test_a_nodes_state_lasts_from_round_to_round() -> None:
    strategy = Collecting(3)
    run_in_process(server_of(strategy, 2), client_app(Counter), 3)
    for number, metrics in enumerate(strategy.metrics, start=1):
        assert sorted(int(m["partition"]) for m in metrics) == [0, 1, 2]
        assert {m["rounds"] for m in metrics} == {number}


def test_two_runs_share_nothing() -> None:
    for _ in range(2):
        strategy = Collecting(2)
        run_in_process(server_of(strategy, 1), client_app(Counter), 2)
        assert {m["rounds"] for m in strategy.metrics[0]} == {1}


def test_a_clients_error_is_a_failure_with_its_reason_and_the_run_goes_on() -> None:
    class Breaking(Counter):
        def fit(
            self, parameters: Arrays, config: dict[str, Scalar]
        ) -> tuple[Arrays, int, dict[str, Scalar]]:
            if self.context.node_config["partition-id"] == 1:
                raise ValueError("the battery is empty")
            return super().fit(parameters, config)

    strategy = Collecting(3)
    run_in_process(server_of(strategy, 2), client_app(Breaking), 3)
    assert [len(metrics) for metrics in strategy.metrics] == [2, 2]
    assert all("ValueError: the battery is empty" in text for [text] in strategy.failures)


def test_the_servers_error_ends_the_run() -> None:
    class Breaking(Collecting):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            raise RuntimeError("no aggregate")

    with pytest.raises(RuntimeError, match="no aggregate"):
        run_in_process(server_of(Breaking(2), 2), client_app(Counter), 2)


def test_clients_run_one_at_a_time() -> None:
    inside = threading.Semaphore(1)
    overlaps: list[bool] = []

    class Careful(Counter):
        def fit(
            self, parameters: Arrays, config: dict[str, Scalar]
        ) -> tuple[Arrays, int, dict[str, Scalar]]:
            overlaps.append(not inside.acquire(blocking=False))
            time.sleep(0.02)  # long enough for another thread to get here
            inside.release()
            return super().fit(parameters, config)

    run_in_process(server_of(Collecting(5), 1), client_app(Careful), 5)
    assert overlaps == [False] * 5


def test_a_message_api_app_runs_as_well() -> None:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        count = len(context.state.config_records)
        context.state.config_records[f"round {count}"] = ConfigRecord({})
        metrics = MetricRecord({"partition": int(context.node_config["partition-id"])})
        metrics["seen"] = count
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    server = ServerApp()
    seen: list[list[tuple[int, int]]] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for _ in range(2):
            messages = [
                Message(RecordDict({"config": ConfigRecord({})}), node_id, "train")
                for node_id in grid.get_node_ids()
            ]
            replies = list(grid.send_and_receive(messages, timeout=5))
            records = [reply.content.metric_records["metrics"] for reply in replies]
            assert {reply.metadata.src_node_id for reply in replies} == set(grid.get_node_ids())
            seen.append([(int(r["partition"]), int(r["seen"])) for r in records])  # type: ignore[arg-type]

    run_in_process(server, client, 3)
    assert seen == [[(0, 0), (1, 0), (2, 0)], [(0, 1), (1, 1), (2, 1)]]


def test_a_reply_is_handed_out_once() -> None:
    client = ClientApp()

    @client.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({}), reply_to=message)

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        assert isinstance(grid, InProcessGrid)
        node_id = next(iter(grid.get_node_ids()))
        message = grid.create_message(RecordDict({}), "query", node_id, "group")
        [message_id] = grid.push_messages([message])
        [reply] = grid.pull_messages([message_id, "unknown"])
        assert reply.metadata.reply_to_message_id == message_id
        assert reply.metadata.group_id == "group"
        assert list(grid.pull_messages([message_id])) == []

    run_in_process(server, client, 1)


def test_the_history_of_a_classic_app_is_flowers_own() -> None:
    class Evaluating(Collecting):
        def evaluate(self, server_round: int, parameters: Any) -> tuple[float, dict[str, Scalar]]:
            return float(server_round), {}

    grid = InProcessGrid(client_app(Counter), 2)
    strategy = Evaluating(2)
    history = start_grid(grid=grid, strategy=strategy, config=ServerConfig(num_rounds=2))
    assert isinstance(history, History)
    assert history.losses_centralized == [(0, 0.0), (1, 1.0), (2, 2.0)]
