"""A whole run at sparsity 0 against Flower's own FedAvg with the client of a quickstart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from simulations.data import load_data
from simulations.in_process import run_in_process
from simulations.models import build_model
from simulations.runner import run
from simulations.settings import RunSettings
from tests.simulations.small_runs import small
from zerofl_flwr.training import seed_of

Arrays = list[NDArray[Any]]
CLIENTS, ROUNDS, EPOCHS, BATCH = 4, 3, 2, 16
RATE, MOMENTUM, SEED = 0.1, 0.5, 5
# All clients train, as Flower draws them by itself in no order that could be repeated.
OPTIONS: dict[str, Any] = {
    "num_clients": CLIENTS,
    "clients_per_round": CLIENTS,
    "rounds": ROUNDS,
    "local_epochs": EPOCHS,
    "batch_size": BATCH,
    "learning_rate": RATE,
    "momentum": MOMENTUM,
    "partitioner": "dirichlet",
    "samples_per_client": 60,
    "mask_ratio": 0.0,
    "seed": SEED,
}
SETTINGS = small(sparsity=0.0, **OPTIONS)


def new_model() -> torch.nn.Module:
    return build_model("digits_cnn", 10, (1, 8, 8), seed=SEED)


class QuickstartClient(NumPyClient):
    """Dense weights in, SGD, dense weights out; nothing of this package but data and model."""

    def __init__(self, partition_id: int) -> None:
        self.partition_id = partition_id
        self.model = new_model()
        train = load_data(SETTINGS.data).partition(partition_id).train
        self.loader: DataLoader[Any] = DataLoader(train, batch_size=BATCH, shuffle=True)

    def fit(
        self, parameters: Arrays, config: dict[str, Scalar]
    ) -> tuple[Arrays, int, dict[str, Scalar]]:
        names = self.model.state_dict().keys()
        tensors = [torch.tensor(array) for array in parameters]
        self.model.load_state_dict(dict(zip(names, tensors, strict=True)), strict=True)
        torch.manual_seed(seed_of(SEED, int(config["round"]), self.partition_id))
        torch.set_num_threads(1)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.model.train()
        for _ in range(EPOCHS):
            for images, labels in self.loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.model(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        arrays = [tensor.numpy() for tensor in self.model.state_dict().values()]
        samples = len(self.loader.dataset)  # type: ignore[arg-type]
        return arrays, samples, {"partition": self.partition_id}


class OrderedFedAvg(FedAvg):
    """Flower's FedAvg; only that replies, which come in any order, are sorted before the sum."""

    def __init__(self) -> None:
        arrays = [tensor.numpy() for tensor in new_model().state_dict().values()]
        super().__init__(
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(arrays),
            on_fit_config_fn=lambda server_round: {"round": server_round},
            fit_metrics_aggregation_fn=lambda _: {},
        )
        self.rounds: list[Arrays] = [arrays]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        assert failures == []
        ordered = sorted(results, key=lambda reply: int(reply[1].metrics["partition"]))
        parameters, metrics = super().aggregate_fit(server_round, ordered, failures)
        assert parameters is not None
        self.rounds.append(parameters_to_ndarrays(parameters))
        return parameters, metrics


def plain_rounds() -> list[Arrays]:
    """Run FedAvg and return the global model before the first and after each round."""
    strategy = OrderedFedAvg()

    def client_fn(context: Context) -> Client:
        return QuickstartClient(int(context.node_config["partition-id"])).to_client()

    config = ServerConfig(num_rounds=ROUNDS)
    components = ServerAppComponents(strategy=strategy, config=config)
    run_in_process(ServerApp(server_fn=lambda _: components), ClientApp(client_fn), CLIENTS)
    return strategy.rounds


def final_model(settings: RunSettings, folder: Path) -> Arrays:
    with np.load(run(settings, folder) / "model.npz", allow_pickle=False) as stored:
        return list(stored.values())


def bits(arrays: Arrays) -> list[tuple[np.dtype[Any], tuple[int, ...], bytes]]:
    return [(array.dtype, array.shape, array.tobytes()) for array in arrays]


@pytest.mark.usefixtures("no_plots")
def test_sparsity_0_is_plain_fedavg_bit_for_bit(tmp_path: Path) -> None:
    plain = plain_rounds()
    assert len(plain) == 1 + ROUNDS
    assert bits(final_model(SETTINGS, tmp_path / "dense")) == bits(plain[-1])
    # Each round moved the model, and a little sparsity would have been noticed.
    assert all(bits(before) != bits(after) for before, after in pairwise(plain))
    sparse = final_model(small(sparsity=0.1, **OPTIONS), tmp_path / "sparse")
    assert bits(sparse) != bits(plain[-1])
