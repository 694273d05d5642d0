"""Flower's own strategies, and ours that take their place, as a run's settings want them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flwr.common import NDArrays, Scalar, ndarrays_to_parameters
from flwr.server.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)

from simulations.settings import RunSettings
from simulations.simulation_settings import DEFAULT_SERVER_LEARNING_RATES
from strategies import Alone, FedNova, Scaffold
from strategies.dense_replies import ROUND


def flower_strategy(
    settings: RunSettings,
    initial: NDArrays,
    *,
    run: str = "trial",
    array_names: list[str] | None = None,
    **functions: Any,
) -> Strategy:
    """Build the strategy that the setting ``strategy`` names.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    initial : list of ndarray
        The model that it starts from.
    run : str
        Name of the run, under which clients keep what lasts.
    array_names : list of str, optional
        Names of the model's arrays.
    **functions
        FedAvg's ``evaluate_fn`` and ``evaluate_metrics_aggregation_fn``.
    """
    simulation = settings.simulation
    clients = settings.data.num_clients
    common: dict[str, Any] = {
        "fraction_fit": 0.0,
        "min_fit_clients": simulation.clients_per_round,
        "fraction_evaluate": simulation.evaluating_fraction,
        "min_evaluate_clients": math.ceil(simulation.evaluating_fraction * clients),
        "min_available_clients": clients,
        "initial_parameters": ndarrays_to_parameters(initial),
        "on_fit_config_fn": lambda server_round: fit_config(settings, server_round),
        "fit_metrics_aggregation_fn": lambda _: {},
        **functions,
    }
    rate = simulation.server_learning_rate
    if rate is None:
        rate = DEFAULT_SERVER_LEARNING_RATES.get(simulation.strategy, 1.0)
    optimizer: dict[str, Any] = {"eta": rate, "tau": simulation.server_tau}
    named: dict[str, Any] = {"array_names": array_names}
    builders: dict[str, Callable[[], Strategy]] = {
        "fedavg": lambda: FedAvg(**common),
        "fedprox": lambda: FedProx(**common, proximal_mu=simulation.proximal_mu),
        "fedavgm": lambda: FedAvgM(
            **common, server_learning_rate=rate, server_momentum=simulation.server_momentum
        ),
        "fedadam": lambda: FedAdam(**common, **optimizer),
        "fedyogi": lambda: FedYogi(**common, **optimizer),
        "fedadagrad": lambda: FedAdagrad(**common, **optimizer),
        "scaffold": lambda: Scaffold(
            **common, **named, num_clients=clients, server_learning_rate=rate, run=run
        ),
        "fednova": lambda: FedNova(**common, **named, momentum=settings.training.momentum),
        "alone": lambda: Alone(**common, **named, run=run),
    }
    return builders[simulation.strategy]()


def fit_config(settings: RunSettings, server_round: int) -> dict[str, Scalar]:
    """Return the entries of a round's training messages that follow from the run's settings."""
    training = settings.training
    config: dict[str, Scalar] = {
        "learning-rate": training.learning_rate_at(server_round, settings.simulation.rounds),
        "local-epochs": training.local_epochs,
    }
    # ZeroFL's plan tells the round.
    return config if settings.algorithm == "zerofl" else {**config, ROUND: server_round}
