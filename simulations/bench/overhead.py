"""Client updates a second: ZeroFL with sparsity 0 against plain Flower FedAvg, same model and data.

Both run on Ray, in turn, several times over; a round's clock runs from configuring it to its
aggregate, and the first round, in which the workers load everything, is left out.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from flwr.app import Context
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import NDArrays, Parameters, Scalar, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from simulations.assembly import make_client_app
from simulations.batches import batches
from simulations.commands import command
from simulations.data import load_data
from simulations.models import build_model
from simulations.settings import RunSettings
from simulations.zerofl_parts import initial_arrays
from strategies import ZeroFL
from zerofl_flwr.threads import limit_threads


class PlainClient(NumPyClient):
    """The client that a Flower quickstart shows: dense weights down, SGD, dense weights up."""

    # One model a process, as ours has it: building one takes longer than a small epoch.
    _models: ClassVar[dict[RunSettings, nn.Module]] = {}

    def __init__(self, settings: RunSettings, partition_id: int) -> None:
        limit_threads(settings.simulation.cpus_per_client)
        if settings not in self._models:
            data = load_data(settings.data)
            self._models[settings] = build_model(
                settings.simulation.model, data.num_classes, data.sample_shape
            )
        self.model = self._models[settings]
        self.train = load_data(settings.data).partition(partition_id).train
        self.settings = settings

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train one epoch."""
        names = list(self.model.state_dict())
        tensors = map(torch.tensor, parameters)
        self.model.load_state_dict(dict(zip(names, tensors, strict=True)), strict=True)
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=self.settings.training.learning_rate
        )
        self.model.train()
        for inputs, labels in batches(self.train, self.settings.training.batch_size, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        trained = [value.cpu().numpy() for value in self.model.state_dict().values()]
        return trained, len(self.train), {}


class _Timed:
    """Mixed into a strategy: notes the seconds of each round."""

    seconds: list[float]
    _started: float

    def configure_fit(self, *args: Any, **kwargs: Any) -> Any:
        """Start a round's clock."""
        self._started = time.perf_counter()
        return super().configure_fit(*args, **kwargs)  # type: ignore[misc]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Stop it; a client that failed fast must not pass for a fast one."""
        if failures:
            raise RuntimeError(f"{len(failures)} clients failed, the first with: {failures[0]}")
        outcome = super().aggregate_fit(server_round, results, failures)  # type: ignore[misc]
        self.seconds.append(time.perf_counter() - self._started)
        return outcome


class TimedFedAvg(_Timed, FedAvg):
    """Plain Flower FedAvg with a clock."""


class TimedZeroFL(_Timed, ZeroFL):
    """ZeroFL with a clock."""


def updates_per_second(settings: RunSettings, *, zerofl: bool) -> float:
    """Run one simulation and return its client updates a second, the first round left out."""
    simulation = settings.simulation
    initial: Parameters = ndarrays_to_parameters(initial_arrays(settings))
    options: dict[str, Any] = {
        "fraction_fit": 0.0,
        "fraction_evaluate": 0.0,
        "min_fit_clients": simulation.clients_per_round,
        "min_available_clients": settings.data.num_clients,
        "initial_parameters": initial,
    }
    strategy: TimedFedAvg | TimedZeroFL
    strategy = TimedZeroFL(FedAvg(**options), sparsity=0) if zerofl else TimedFedAvg(**options)
    strategy.seconds = []

    def plain_client(context: Context) -> Client:
        return PlainClient(settings, int(context.node_config["partition-id"])).to_client()

    run_simulation(
        ServerApp(
            server_fn=lambda _: ServerAppComponents(
                strategy=strategy, config=ServerConfig(num_rounds=simulation.rounds)
            )
        ),
        make_client_app(settings, Path()) if zerofl else ClientApp(plain_client),
        num_supernodes=settings.data.num_clients,
        backend_config={
            "init_args": {"log_to_driver": False, "logging_level": "error"},
            "client_resources": {"num_cpus": simulation.cpus_per_client, "num_gpus": 0.0},
        },
    )
    return simulation.clients_per_round * (simulation.rounds - 1) / sum(strategy.seconds[1:])


def main(
    dataset: Annotated[str, typer.Option(help="As for lean-flwr run.")] = "digits",
    model: Annotated[str, typer.Option(help="As for lean-flwr run.")] = "digits_cnn",
    clients: Annotated[int, typer.Option(help="Virtual clients.")] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds of each simulation.")] = 8,
    repeats: Annotated[int, typer.Option(help="Simulations of each kind.")] = 3,
) -> None:
    """Print client updates a second of both, and the ratio pair by pair."""
    settings = RunSettings.from_mapping(
        {
            "dataset": dataset,
            "model": model,
            "num-clients": clients,
            "clients-per-round": min(10, clients),
            "rounds": rounds,
            "sparsity": 0.0,
            "mask-ratio": 0.0,
        }
    ).resolved()
    load_data(settings.data)
    ratios = []
    for repeat in range(repeats):
        plain = updates_per_second(settings, zerofl=False)
        ours = updates_per_second(settings, zerofl=True)
        ratios.append(ours / plain)
        print(f"{repeat + 1}: FedAvg {plain:.2f}, ZeroFL {ours:.2f}, ratio {ratios[-1]:.3f}")
    print(f"median ratio {statistics.median(ratios):.3f} (1 is as fast as plain Flower)")


if __name__ == "__main__":
    command(main)()
