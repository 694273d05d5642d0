"""The two apps that ``flwr run`` starts: the run's settings come with its run-config."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.client import Client, ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Scalar
from flwr.server import ServerApp, ServerAppComponents

from simulations.assembly import make_client, make_server_components
from simulations.preflight import check
from simulations.recorder import Recorder
from simulations.setting_differences import differences
from simulations.settings import RunSettings
from simulations.simulation_settings import SimulationSettings
from simulations.slow import slow_mod
from zerofl_flwr.errors import SettingsError


def _client_fn(context: Context) -> Client:
    settings, out, _ = _from_run_config(context)
    return make_client(settings, context, out).to_client()


def _slow(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    settings, _, _ = _from_run_config(context)
    return slow_mod(settings.slow_clients)(message, context, call_next)


def _server_fn(context: Context) -> ServerAppComponents:
    settings, out, resume = _from_run_config(context)
    check_federation(settings)
    check(settings)
    recorder = Recorder.resume(out) if resume else Recorder.create(out, settings)
    check_same(settings, recorder.settings)
    return make_server_components(settings, recorder)


def check_federation(settings: RunSettings) -> None:
    """Refuse what would have no effect: where clients run is the federation's configuration."""
    default = SimulationSettings()
    for name in ("backend", "ray_address"):
        if (value := getattr(settings.simulation, name)) != getattr(default, name):
            raise SettingsError(
                f"{name.replace('_', '-')} is {value!r}, which has no effect under flwr run: there "
                "Flower's federation configuration says where clients run (flwr federation "
                "simulation-config); lean-flwr run takes it"
            )


def check_same(given: RunSettings, stored: RunSettings) -> None:
    """Refuse to continue a run with other settings: its clients see the run-config alone."""
    if differing := differences(given, stored.resolved()):
        raise SettingsError(
            "a resumed run keeps its settings, but the run-config differs from its config.toml: "
            f"{differing}. Pass --run-config with that file's values"
        )


@lru_cache(maxsize=4)
def _settings_of(items: tuple[tuple[str, Scalar], ...]) -> RunSettings:
    return RunSettings.from_mapping(dict(items)).resolved()


def _from_run_config(context: Context) -> tuple[RunSettings, Path, bool]:
    values = dict(context.run_config)
    out = Path(str(values.pop("out", "") or f"runs/flwr-run-{context.run_id}")).absolute()
    resume = bool(values.pop("resume", False))
    return _settings_of(tuple(sorted(values.items()))), out, resume


server_app = ServerApp(server_fn=_server_fn)
client_app = ClientApp(_client_fn, mods=[_slow])
