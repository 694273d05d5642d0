"""A baseline's parts of a run, from its settings: client, strategy, and the server's test."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.common import NDArrays, Scalar
from torch import nn

from simulations.baselines import AloneClient, BaselineClient, ScaffoldClient
from simulations.baselines.lasting import LastingClient
from simulations.client_parts import client_options, state_options, training_batches
from simulations.flower_strategies import flower_strategy
from simulations.run_models import plain_model
from simulations.server_evaluation import evaluate_globally
from simulations.settings import RunSettings
from strategies import Baseline, BaselineRoundReport, ClientTestReport
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import array_names, get_arrays, set_arrays

_LASTING: dict[str, type[LastingClient]] = {"scaffold": ScaffoldClient, "alone": AloneClient}


def make_client(
    settings: RunSettings, partition_id: int, state: RecordDict, folder: Path
) -> BaselineClient:
    """Build the client that holds one partition; its tensors are made when they are needed.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    partition_id : int
        Which partition.
    state : RecordDict
        What lasts from message to message: a context's state.
    folder : Path
        The run's folder; clients of scaffold and alone keep their state there as well, unless the
        settings name another folder, or the run keeps no checkpoint that they would have to go
        with.
    """
    common: dict[str, Any] = {
        "model": _model(settings, "client"),
        "train_batches": training_batches(settings, partition_id),
        "training": settings.training,
        **client_options(settings, partition_id),
    }
    lasting = _LASTING.get(settings.simulation.strategy)
    if lasting is None:
        return BaselineClient(**common)
    return lasting(**common, **state_options(settings, folder, state))


def make_strategy(
    settings: RunSettings,
    run: str = "trial",
    on_round: Callable[[BaselineRoundReport], None] | None = None,
    on_test: Callable[[ClientTestReport], None] | None = None,
) -> Baseline:
    """Build the strategy of a run.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    run : str
        Name of the run, under which its clients keep their state.
    on_round, on_test : callable, optional
        Who is told of each round, and of each test by clients.
    """
    model, simulation = plain_model(settings), settings.simulation
    names = array_names(model)
    return Baseline(
        flower_strategy(
            settings,
            get_arrays(model),
            run=run,
            array_names=names,
            evaluate_fn=lambda server_round, arrays, _: _test(settings, server_round, arrays),
            evaluate_metrics_aggregation_fn=lambda _: {},
        ),
        array_names=names,
        evaluate_every=simulation.evaluate_every,
        last_round=simulation.rounds,
        min_replies=settings.baseline.min_replies,
        on_failure=settings.baseline.on_failure,
        seed=settings.seed,
        on_round=on_round,
        on_test=on_test,
    )


def check_baseline(settings: RunSettings) -> None:
    """Refuse a run in which nobody could test anything.

    Raises
    ------
    SettingsError
        If clients train alone and none of them tests.
    """
    if settings.simulation.strategy == "alone" and settings.simulation.evaluating_fraction == 0:
        raise SettingsError(
            "fraction-evaluate is 0, but with strategy alone there is no network that the server "
            "could test: raise it"
        )


@lru_cache(maxsize=2)
def _model(settings: RunSettings, role: str) -> nn.Module:
    """Keep one model per process and role: each message overwrites all of its state."""
    return plain_model(settings)


def _test(
    settings: RunSettings, server_round: int, arrays: NDArrays
) -> tuple[float, dict[str, Scalar]] | None:
    """Test the global model on the joint test data, where no client tests it."""
    simulation = settings.simulation
    if simulation.evaluating_fraction > 0 or not simulation.tests_in(server_round):
        return None
    model = _model(settings, "server")
    set_arrays(model, arrays)
    return evaluate_globally(model, settings)
