"""Clients behind the mod whose model is sparse: one that follows the plan, and ZeroFL's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simulations.in_process import run_in_process
from strategies import RoundReport, ZeroFL
from tests.zerofl_flwr.client_messages import Arrays, same
from tests.zerofl_flwr.plain_client import (
    AFTER,
    BEFORE,
    MASKED,
    PLAN,
    PlainClient,
    bits,
    fit,
    uploaded,
)
from zerofl_flwr import TrainingSettings, ZeroFLClient, follow_plan, sparse_uplink, sparsify
from zerofl_flwr.model_arrays import get_arrays, set_arrays
from zerofl_flwr.payload import Entry, SparseArray, Values, encode

ROUNDS = 6
RAMP: dict[str, Any] = {
    "sparsity": 0.9,
    "mask_ratio": 0.1,
    "sparsity_schedule": "cubic",
    "sparsity_start": 0.3,
    "sparsity_rounds": 4,
    "freeze_mask_after_round": 4,
}
# 0.9 - 0.6 * (1 - t / 4)^3 in the rounds 1 to 4: 0.646875, 0.825, 0.890625, 0.9.
KEPT_OF_400 = [142, 70, 44, 40, 40, 40]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.Linear(20, 3))


def samples(partition_id: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(partition_id)
    return TensorDataset(torch.randn(8, 6, generator=generator), torch.arange(8) % 3)


def weights_in_use(model: nn.Module) -> int:
    """Count the middle layer's weights that reach its outputs."""
    layer = model[2]  # type: ignore[index]
    with torch.no_grad():
        return int(torch.count_nonzero(layer.eval()(torch.eye(20)) - layer.bias))


class QuickstartClient(NumPyClient):
    """A few lines of torch, and the one line that follows the plan."""

    def __init__(self, partition_id: int, notes: list[Any]) -> None:
        self.partition_id = partition_id
        self.notes = notes

    def fit(
        self, parameters: Arrays, config: dict[str, Scalar]
    ) -> tuple[Arrays, int, dict[str, Scalar]]:
        model = sparsify(network(), 0.0)
        set_arrays(model, parameters)
        plan = follow_plan(model, config)
        assert plan is not None
        used = weights_in_use(model)
        inputs, labels = samples(self.partition_id).tensors
        optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        trained = get_arrays(model)
        self.notes.append((plan.server_round, used, parameters[2], trained[2]))
        return trained, 8, {}


def sparse_of(array: Any) -> SparseArray:
    positions = np.array([1, 5, 7])
    return SparseArray.from_indices(positions, array.reshape(-1)[positions], array.shape)


def federate(
    make: Callable[[int], NumPyClient], mods: Sequence[Any], options: dict[str, Any]
) -> tuple[ZeroFL, list[RoundReport]]:
    """Run six rounds of three clients."""
    reports: list[RoundReport] = []
    wrapped = FedAvg(
        min_fit_clients=3,
        min_available_clients=3,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(get_arrays(network())),
    )
    strategy = ZeroFL(wrapped, **options, on_failure="raise", on_round=reports.append)

    def client_fn(context: Context) -> Client:
        return make(int(context.node_config["partition-id"])).to_client()

    components = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))
    run_in_process(
        ServerApp(server_fn=lambda _: components), ClientApp(client_fn, mods=list(mods)), 3
    )
    return strategy, reports


@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
def test_a_quickstart_client_follows_the_ramp_and_keeps_the_frozen_zeros(rule: str) -> None:
    notes: list[Any] = []
    strategy, reports = federate(
        lambda partition_id: QuickstartClient(partition_id, notes),
        [sparse_uplink()],
        {**RAMP, "rule": rule},
    )
    assert [len(report.good) for report in reports] == [3] * ROUNDS
    used = [{count for number, count, *_ in notes if number == r + 1} for r in range(ROUNDS)]
    assert used == [{count} for count in KEPT_OF_400]
    frozen = [(before, after) for number, _, before, after in notes if number > 4]
    assert len(frozen) == 6
    zeros = frozen[0][0] == 0
    assert np.count_nonzero(zeros) == 360
    for before, after in frozen:
        assert not before[zeros].any()
        assert not after[zeros].any()
        assert not np.array_equal(before, after)
    assert not strategy.model.arrays[2][zeros].any()


def own_client(partition_id: int) -> ZeroFLClient:
    # Other layers than the mod would choose by itself.
    return ZeroFLClient(
        sparsify(network(), 0.9, masked=["0", "2"]),
        DataLoader(samples(partition_id), batch_size=4, shuffle=True),
        partition_id=partition_id,
        training=TrainingSettings(learning_rate=0.1, local_epochs=2),
    )


@pytest.mark.parametrize("rule", ["top-k-weights", "top-k-diff"])
def test_zerofls_own_client_trains_behind_the_mod_as_without(rule: str) -> None:
    options = {**RAMP, "rule": rule}
    with_mod, reports = federate(own_client, [sparse_uplink()], options)
    without, _ = federate(own_client, [], options)
    assert same(with_mod.model.arrays, without.model.arrays)
    assert with_mod.model.names == list(network().state_dict())
    assert with_mod.model.masked == [0, 2]
    assert [layer.mask_overlap for layer in reports[-1].layers] == [1, 1]


def test_a_payload_from_the_client_passes_through_unchanged() -> None:
    payload = encode([Entry(f"layer{i}", array) for i, array in enumerate(AFTER)], {"round": 99})
    client, parameters = PlainClient(payload), ndarrays_to_parameters(BEFORE)
    result = fit(client, sparse_uplink(sparsity=0.99, rule="top-k-diff"), parameters)
    assert bits(parameters_to_ndarrays(result.parameters)) == bits(payload)
    assert (result.num_examples, result.metrics) == (17, {"train_loss": 0.5})


@pytest.mark.parametrize("masked", [None, [], [0]])
def test_frozen_masks_are_the_servers_whatever_the_mod_would_choose(masked: Any) -> None:
    entries = []
    for position, array in enumerate(BEFORE):
        name = str(position)
        entries.append(Entry(name, sparse_of(array) if position in MASKED else array))
    config = {**PLAN.to_config(), "zerofl-frozen": True}
    parameters = ndarrays_to_parameters(encode(entries, {"round": 2}, force_csr=True))
    result = fit(PlainClient(), sparse_uplink(masked=masked), parameters, config)  # type: ignore[arg-type]
    sizes = dict.fromkeys(MASKED, 3)
    payload = uploaded(result, sizes)
    for position in MASKED:
        data = payload.entries[position].data
        assert isinstance(data, Values)
        assert data.values.tolist() == AFTER[position].reshape(-1)[[1, 5, 7]].tolist()
