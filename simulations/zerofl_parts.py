"""ZeroFL's parts of a run, from its settings: client, strategy, and the server's test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from flwr.common import NDArrays, Scalar
from torch import nn

from simulations.client_parts import client_options, training_batches
from simulations.flower_strategies import flower_strategy
from simulations.run_models import plain_model
from simulations.server_evaluation import evaluate_globally
from simulations.settings import RunSettings
from strategies import ClientTestReport, RoundReport, ZeroFL
from zerofl_flwr import ZeroFLClient, set_sparsity, sparsify
from zerofl_flwr.model_arrays import array_names, get_arrays, set_arrays
from zerofl_flwr.swat import sparse_layers


def make_client(settings: RunSettings, partition_id: int) -> ZeroFLClient:
    """Build the client that holds one partition; its tensors are made when they are needed."""
    return ZeroFLClient(
        _model(settings, "client"),
        training_batches(settings, partition_id),
        training=settings.training,
        **client_options(settings, partition_id),
    )


def make_strategy(
    settings: RunSettings,
    on_round: Callable[[RoundReport], None] | None = None,
    on_test: Callable[[ClientTestReport], None] | None = None,
) -> ZeroFL:
    """Build the strategy of a run: ZeroFL around the Flower strategy that was asked for."""
    model = plain_model(settings)
    return ZeroFL(
        flower_strategy(
            settings,
            get_arrays(model),
            evaluate_fn=lambda server_round, arrays, _: _test(settings, server_round, arrays),
            evaluate_metrics_aggregation_fn=_mean_accuracy,
        ),
        settings.zerofl,
        seed=settings.seed,
        evaluate_every=settings.simulation.evaluate_every,
        last_round=settings.simulation.rounds,
        on_round=on_round,
        on_test=on_test,
        array_names=array_names(model),
    )


def initial_arrays(settings: RunSettings) -> NDArrays:
    """Return the run's initial weights, which depend on its seed alone."""
    return get_arrays(plain_model(settings))


def sparse_layer_names(settings: RunSettings) -> list[str]:
    """Return the names of the layers that train sparse, in the model's order."""
    return list(sparse_layers(_model(settings, "server")))


def masked_layers(settings: RunSettings) -> Sequence[str] | None:
    """Return the names of the layers that the setting ``masked`` gives; None if it is not set."""
    chosen = settings.simulation.masked
    if chosen is None:
        return None
    return [name.strip() for name in chosen.split(",")]


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
        masked=masked_layers(settings),
    )


def _mean_accuracy(metrics: list[tuple[int, dict[str, Scalar]]]) -> dict[str, Scalar]:
    total = sum(samples for samples, _ in metrics)
    right = sum(samples * float(values["accuracy"]) for samples, values in metrics)
    return {"client_accuracy": right / total}


def _test(
    settings: RunSettings, server_round: int, arrays: NDArrays
) -> tuple[float, dict[str, Scalar]] | None:
    """Test the global model on the test split, with the round's sparse weights."""
    if not settings.simulation.tests_in(server_round):
        return None
    model = _model(settings, "server")
    set_arrays(model, arrays)
    plan = settings.zerofl.plan(max(server_round, 1))
    set_sparsity(model, plan.sparsity, plan.activation_sparsity, plan.gradient_sparsity)
    return evaluate_globally(model, settings)
