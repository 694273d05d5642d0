"""Plain clients with the mod under the strategy, two rounds in this process."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import (
    Scalar,
    ndarrays_to_parameters,
)
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from numpy.typing import NDArray
from torch import nn

from simulations.in_process import run_in_process
from strategies import RoundReport, ZeroFL
from zerofl_flwr.mod import sparse_uplink
from zerofl_flwr.model_arrays import get_arrays, set_arrays
from zerofl_flwr.payload import (
    SparseArray,
)
from zerofl_flwr.uplink import uplink_entries

Arrays = list[NDArray[Any]]


def plain_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.Linear(20, 3))


class TorchClient(NumPyClient):
    """What a user has: a few lines of torch."""

    def __init__(self, partition_id: int, arrived: list[Arrays]) -> None:
        self.generator = torch.Generator().manual_seed(partition_id)
        self.arrived = arrived

    def fit(
        self, parameters: Arrays, config: dict[str, Scalar]
    ) -> tuple[Arrays, int, dict[str, Scalar]]:
        self.arrived.append(parameters)
        model = plain_model()
        set_arrays(model, parameters)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(8, 6, generator=self.generator)
        nn.functional.cross_entropy(model(inputs), torch.arange(8) % 3).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return get_arrays(model), 8, {}


def federate(rule: str, on_round: Callable[[RoundReport], None], arrived: list[Arrays]) -> ZeroFL:
    """Run two rounds of four plain clients with the mod."""
    wrapped = FedAvg(
        min_fit_clients=4,
        min_available_clients=4,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(get_arrays(plain_model())),
        fit_metrics_aggregation_fn=lambda _: {},
    )
    strategy = ZeroFL(wrapped, sparsity=0.9, mask_ratio=0.1, rule=rule, on_round=on_round)
    server = ServerApp(
        server_fn=lambda _: ServerAppComponents(
            strategy=strategy, config=ServerConfig(num_rounds=2)
        )
    )
    client = ClientApp(
        client_fn=lambda context: TorchClient(
            int(context.node_config["partition-id"]), arrived
        ).to_client(),
        mods=[sparse_uplink()],
    )
    run_in_process(server, client, 4)
    return strategy


@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
def test_plain_clients_train_under_the_strategy(rule: str) -> None:
    reports: list[RoundReport] = []
    arrived: list[Arrays] = []
    strategy = federate(rule, reports.append, arrived)
    assert [len(report.good) for report in reports] == [4, 4]
    assert [client.partition_id for client in reports[1].clients] == [0, 1, 2, 3]
    assert [layer.parameters for layer in reports[1].layers] == [400]
    assert len(arrived) == 8
    # The mean of the second round, by hand: from what each client got and would have sent.
    before = arrived[4]
    sums = [np.zeros_like(array) for array in before]
    for partition_id in range(4):
        trained, _, _ = TorchClient(partition_id, []).fit(before, {})
        entries = uplink_entries(
            [str(p) for p in range(len(before))],
            before,
            trained,
            masked={"2"},
            rule=rule,
            keep=Decimal("0.2"),
        )
        for p, entry in enumerate(entries):
            data = entry.data
            sums[p] += (data.to_dense() if isinstance(data, SparseArray) else data) / 4  # type: ignore[operator]
    expected = [
        before[p] + total if rule != "top-k-weights" and p == 2 else total
        for p, total in enumerate(sums)
    ]
    for now, then in zip(strategy.model.arrays, expected, strict=True):
        assert now.dtype == np.float32
        np.testing.assert_allclose(now, then, atol=1e-6)
