"""What an AdaSplit run computes and uploads, told from its model and data sizes alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from adasplit_flwr.batches import training_bounds
from adasplit_flwr.costs import SampleCosts, sample_costs
from simulations.commands import command
from simulations.data import load_data
from simulations.run_models import split_model
from simulations.settings import RunSettings, read_config
from zerofl_flwr.errors import SettingsError


@dataclass(frozen=True)
class RunCosts:
    """Costs of a whole run, in which any client of a round may be picked.

    Parameters
    ----------
    client_samples, server_samples : float
        Samples that clients train on, and that the server learns from. Exact where all partitions
        are as large, otherwise what is to be expected of clients that are drawn evenly.
    sample : SampleCosts
        Of one of them.
    """

    client_samples: float
    server_samples: float
    sample: SampleCosts

    @property
    def client_tera(self) -> float:
        """Forward multiply-adds of all clients, in 10^12."""
        return self.client_samples * self.sample.client_step / 1e12

    @property
    def server_tera(self) -> float:
        """Forward multiply-adds of the server, in 10^12."""
        return self.server_samples * self.sample.server / 1e12

    @property
    def uplink_gigabytes(self) -> float:
        """Activations, dense in float32, in 10^9 bytes; labels and headers come on top."""
        return self.server_samples * self.sample.activation_bytes / 1e9


def run_costs(settings: RunSettings) -> RunCosts:
    """Count a run's costs.

    Raises
    ------
    SettingsError
        If the run is another method's, or has rounds of other kinds than exchanges of all clients.
    DataError
        If the data cannot be had.
    """
    if settings.algorithm != "adasplit":
        raise SettingsError(f"costs of a cut network were asked for, of a {settings.algorithm} run")
    chosen = settings.adasplit
    if chosen.client_weights == "relayed" or (chosen.shares_weights and chosen.returns_gradients):
        raise SettingsError(
            "rounds of one client, and those that only bring gradients, are not counted here: "
            f"client-weights is {chosen.client_weights!r} and server-gradient "
            f"{chosen.server_gradient!r}; rounds.csv has what such a run computed"
        )
    data, simulation, method = load_data(settings.data), settings.simulation, settings.adasplit
    trained = [
        _samples_of_an_exchange(settings, len(data.training_labels(client)))
        for client in range(settings.data.num_clients)
    ]
    mean = sum(trained) / len(trained)
    per_round = simulation.clients_per_round
    global_rounds = simulation.rounds - method.local_rounds(simulation.rounds)
    return RunCosts(
        client_samples=simulation.rounds * per_round * mean,
        server_samples=global_rounds * method.uploads(per_round) * mean,
        sample=sample_costs(split_model(settings), data.sample_shape),
    )


def _samples_of_an_exchange(settings: RunSettings, samples: int) -> float:
    """Count the samples of an epoch, or of as many batches of one as an exchange has."""
    size = settings.training.batch_size
    epoch = samples // size * size if settings.split.full_batches else samples
    if settings.adasplit.iterations_per_round is None:
        return epoch
    batches = len(training_bounds(samples, size, full=settings.split.full_batches))
    return epoch * settings.adasplit.iterations_per_round / batches


def main(
    config: Annotated[Path, typer.Argument(help="Settings of an AdaSplit run.")],
    dataset: Annotated[str | None, typer.Option(help="As for lean-flwr run.")] = None,
) -> None:
    """Print an AdaSplit run's forward multiply-adds, and the bytes of its activations when dense.

    A multiply-add counts once, as in the paper; torch counts it twice. A step backward costs about
    twice as much again.
    """
    values = read_config(config)
    if dataset is not None:
        values["dataset"] = dataset
    costs = run_costs(RunSettings.from_mapping(values).resolved())
    client, server, sample = costs.client_tera, costs.server_tera, costs.sample
    print(f"per sample: client {sample.client:,} + head {sample.head:,}, server {sample.server:,}")
    print(f"clients: {costs.client_samples:,.0f} samples, {client:.3f} T multiply-adds")
    print(f"server:  {costs.server_samples:,.0f} samples, {server:.3f} T multiply-adds")
    print(f"total:   {client + server:.3f} T multiply-adds")
    print(f"uplink:  {costs.uplink_gigabytes:.3f} GB of dense activations")


if __name__ == "__main__":
    command(main)()
