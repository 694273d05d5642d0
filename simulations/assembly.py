"""Build the Flower parts of a run from its settings: the clients, and the apps of both sides."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.client import Client, ClientApp, NumPyClient
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import Strategy

from simulations import adasplit_parts, baseline_parts, zerofl_parts
from simulations.recorded import RecordedStrategy
from simulations.recorder import Recorder
from simulations.settings import RunSettings
from simulations.slow import slow_mod


def make_client(settings: RunSettings, context: Context, folder: Path) -> NumPyClient:
    """Build the client that holds a context's partition.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    context : Context
        Its node config has the ``partition-id``; its state lasts from message to message.
    folder : Path
        The run's folder.
    """
    partition_id = int(context.node_config["partition-id"])
    if settings.algorithm == "adasplit":
        return adasplit_parts.make_client(settings, partition_id, context.state, folder)
    if settings.algorithm == "baseline":
        return baseline_parts.make_client(settings, partition_id, context.state, folder)
    return zerofl_parts.make_client(settings, partition_id)


def make_client_app(settings: RunSettings, folder: Path) -> ClientApp:
    """Build the ClientApp of a run, whose results go to a folder."""

    def client_fn(context: Context) -> Client:
        return make_client(settings, context, folder).to_client()

    slow = settings.slow_clients
    return ClientApp(client_fn, mods=[slow_mod(slow)] if slow else [])


def make_strategy(settings: RunSettings, recorder: Recorder) -> Strategy:
    """Build the strategy of a run, which reports to the recorder."""
    if settings.algorithm == "adasplit":
        strategy = adasplit_parts.make_strategy(
            settings,
            recorder.folder,
            recorder.run_name,
            on_round=recorder.aggregated,
            on_test=recorder.tested_one_by_one,
        )
        recorder.summarise_masks = strategy.mask_summary
        return strategy
    if settings.algorithm == "baseline":
        return baseline_parts.make_strategy(
            settings,
            recorder.run_name or "run",
            on_round=recorder.aggregated,
            on_test=recorder.tested_one_by_one,
        )
    return zerofl_parts.make_strategy(settings, recorder.aggregated, recorder.tested_one_by_one)


def make_server_app(settings: RunSettings, recorder: Recorder) -> ServerApp:
    """Build the ServerApp of a run; results go to the recorder."""
    return ServerApp(server_fn=lambda _: make_server_components(settings, recorder))


def make_server_components(settings: RunSettings, recorder: Recorder) -> ServerAppComponents:
    """Build what a ServerApp runs: the recorded strategy, for the rounds that are left."""
    recorded = RecordedStrategy(make_strategy(settings, recorder), recorder)
    remaining = settings.simulation.rounds - recorder.rounds_done
    return ServerAppComponents(
        strategy=recorded, config=ServerConfig(num_rounds=remaining, round_timeout=None)
    )
