"""ZeroFL's parts of a run, from its settings: client, strategy, and the server's test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

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
from torch import nn

from simulations.batches import EVALUATION_BATCH, LazyBatches, batches
from simulations.data import load_data
from simulations.devices import server_device
from simulations.run_models import plain_model
from simulations.settings import RunSettings
from simulations.simulation_settings import DEFAULT_SERVER_LEARNING_RATES
from strategies import RoundReport, ZeroFL
from zerofl_flwr import TrainingSettings, ZeroFLClient, set_sparsity, sparsify
from zerofl_flwr.model_arrays import array_names, get_arrays, set_arrays
from zerofl_flwr.threads import available_cpus, limit_threads
from zerofl_flwr.training import Batches, evaluate


def make_client(settings: RunSettings, partition_id: int) -> ZeroFLClient:
    """Build the client that holds one partition; its tensors are made when they are needed.

    Flower builds a client for each message, also for one that only asks who the client is.
    """
    data = load_data(settings.data)

    def training() -> Batches:
        train = data.partition(partition_id).train
        return batches(train, settings.training.batch_size, shuffle=True)

    def validation() -> Batches:
        return batches(data.partition(partition_id).validation, EVALUATION_BATCH)

    return ZeroFLClient(
        _model(settings, "client"),
        LazyBatches(training),
        LazyBatches(validation) if data.validation_size(partition_id) else None,
        training=settings.training,
        partition_id=partition_id,
        seed=settings.seed,
        device=settings.simulation.device,
        threads=settings.simulation.cpus_per_client,
    )


def make_strategy(
    settings: RunSettings, on_round: Callable[[RoundReport], None] | None = None
) -> ZeroFL:
    """Build the strategy of a run: ZeroFL around the Flower strategy that was asked for."""
    model = plain_model(settings)
    return ZeroFL(
        _wrapped_strategy(settings, get_arrays(model)),
        settings.zerofl,
        seed=settings.seed,
        on_round=on_round,
        array_names=array_names(model),
    )


def initial_arrays(settings: RunSettings) -> NDArrays:
    """Return the run's initial weights, which depend on its seed alone."""
    return get_arrays(plain_model(settings))


@lru_cache(maxsize=2)
def _model(settings: RunSettings, role: str) -> nn.Module:
    """Keep one sparse model per process and role: each message overwrites all of its state."""
    model, zerofl = plain_model(settings), settings.zerofl
    ever_sparse = (
        zerofl.sparsity,
        zerofl.sparsity_start,
        zerofl.activation_sparsity,
        zerofl.gradient_sparsity,
    )
    if not any(ever_sparse):
        return model
    return sparsify(
        model,
        zerofl.sparsity,
        activation_sparsity=zerofl.activation_sparsity,
        gradient_sparsity=zerofl.gradient_sparsity,
        topk_period=zerofl.topk_period,
        masked=_masked_layers(settings),
    )


def _masked_layers(settings: RunSettings) -> Sequence[str] | None:
    chosen = settings.simulation.masked
    if chosen is None:
        return None
    return [name.strip() for name in chosen.split(",")]


def _wrapped_strategy(settings: RunSettings, initial: NDArrays) -> Strategy:
    simulation = settings.simulation
    clients = settings.data.num_clients
    evaluating = math.ceil(simulation.evaluating_fraction * clients)
    common = {
        "fraction_fit": 0.0,
        "min_fit_clients": simulation.clients_per_round,
        "fraction_evaluate": simulation.evaluating_fraction,
        "min_evaluate_clients": evaluating,
        "min_available_clients": clients,
        "initial_parameters": ndarrays_to_parameters(initial),
        "on_fit_config_fn": lambda server_round: _fit_config(settings, server_round),
        "evaluate_fn": lambda server_round, arrays, _: _test(settings, server_round, arrays),
        "fit_metrics_aggregation_fn": lambda _: {},
        "evaluate_metrics_aggregation_fn": _mean_accuracy,
    }
    rate = simulation.server_learning_rate
    if rate is None:
        rate = DEFAULT_SERVER_LEARNING_RATES.get(simulation.strategy, 1.0)
    optimizer = {"eta": rate, "tau": simulation.server_tau}
    builders: dict[str, Callable[[], Strategy]] = {
        "fedavg": lambda: FedAvg(**common),  # type: ignore[arg-type]
        "fedprox": lambda: FedProx(**common, proximal_mu=simulation.proximal_mu),  # type: ignore[arg-type]
        "fedavgm": lambda: FedAvgM(
            **common,  # type: ignore[arg-type]
            server_learning_rate=rate,
            server_momentum=simulation.server_momentum,
        ),
        "fedadam": lambda: FedAdam(**common, **optimizer),  # type: ignore[arg-type]
        "fedyogi": lambda: FedYogi(**common, **optimizer),  # type: ignore[arg-type]
        "fedadagrad": lambda: FedAdagrad(**common, **optimizer),  # type: ignore[arg-type]
    }
    return builders[simulation.strategy]()


def _fit_config(settings: RunSettings, server_round: int) -> dict[str, Scalar]:
    training: TrainingSettings = settings.training
    return {
        "learning-rate": training.learning_rate_at(server_round, settings.simulation.rounds),
        "local-epochs": training.local_epochs,
    }


def _mean_accuracy(metrics: list[tuple[int, dict[str, Scalar]]]) -> dict[str, Scalar]:
    total = sum(samples for samples, _ in metrics)
    right = sum(samples * float(values["accuracy"]) for samples, values in metrics)
    return {"client_accuracy": right / total}


def _test(
    settings: RunSettings, server_round: int, arrays: NDArrays
) -> tuple[float, dict[str, Scalar]] | None:
    """Test the global model on the test split, with the round's sparse weights."""
    simulation = settings.simulation
    due = server_round % simulation.evaluate_every == 0 or server_round == simulation.rounds
    if not due:
        return None
    model = _model(settings, "server")
    set_arrays(model, arrays)
    plan = settings.zerofl.plan(max(server_round, 1))
    set_sparsity(model, plan.sparsity, plan.activation_sparsity, plan.gradient_sparsity)
    # Clients idle meanwhile: the test may use every core. Their own limit is set per message.
    limit_threads(available_cpus())
    device = server_device(simulation)
    outcome = evaluate(
        model.to(device), batches(load_data(settings.data).test, EVALUATION_BATCH), device=device
    )
    return outcome.loss, {"accuracy": outcome.accuracy}
