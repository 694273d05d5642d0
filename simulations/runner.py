"""Run a simulation on Ray or in this process; Flower's own talk goes to a log file."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flwr.client import ClientApp
from flwr.server import ServerApp
from flwr.simulation import run_simulation

from simulations.assembly import make_client_app, make_server_app
from simulations.in_process import run_in_process
from simulations.preflight import check
from simulations.progress_bar import progress_bar
from simulations.ray_cluster import ray_cluster
from simulations.recorder import LOG, Recorder
from simulations.settings import RunSettings
from zerofl_flwr.threads import threads_restored


def run(
    settings: RunSettings,
    folder: Path,
    *,
    overwrite: bool = False,
    watch: Callable[[int], None] | None = None,
) -> Path:
    """Run a simulation from its first round.

    Parameters
    ----------
    settings : RunSettings
        What to run; checked before anything starts.
    folder : Path
        Where the results go; made if needed.
    overwrite : bool
        Replace a run that is there already.
    watch : callable, optional
        Called with each finished round's number.

    Returns
    -------
    Path
        The folder, absolute.

    Raises
    ------
    LeanFlwrError
        If a setting cannot work, the folder holds a run already, or a round fails.
    """
    settings = settings.resolved()
    with threads_restored():
        check(settings)
        with closing(Recorder.create(folder, settings, overwrite=overwrite)) as recorder:
            return _run(recorder, watch)


def resume(folder: Path) -> Path:
    """Continue a run after its last checkpoint; it ends as an unbroken run would have.

    Parameters
    ----------
    folder : Path
        The run's folder.

    Returns
    -------
    Path
        The folder, absolute.

    Raises
    ------
    LeanFlwrError
        If the folder holds no run, none that can be continued, or a round fails.
    """
    with closing(Recorder.resume(folder)) as recorder, threads_restored():
        check(recorder.settings)
        return _run(recorder)


def _run(recorder: Recorder, watch: Callable[[int], None] | None = None) -> Path:
    settings = recorder.settings
    server_app, client_app = (
        make_server_app(settings, recorder),
        make_client_app(settings, recorder.folder),
    )
    with _quiet_flower(recorder.folder / LOG), _progress(recorder, watch):
        if settings.simulation.backend == "in-process":
            run_in_process(server_app, client_app, settings.data.num_clients)
        else:
            _run_on_ray(server_app, client_app, settings)
    return recorder.folder


def _run_on_ray(server_app: ServerApp, client_app: ClientApp, settings: RunSettings) -> None:
    simulation = settings.simulation
    with ray_cluster(simulation):
        run_simulation(
            server_app,
            client_app,
            num_supernodes=settings.data.num_clients,
            backend_config={
                "client_resources": {
                    "num_cpus": simulation.cpus_per_client,
                    "num_gpus": simulation.gpus_per_client,
                }
            },
        )


@contextmanager
def _progress(recorder: Recorder, watch: Callable[[int], None] | None) -> Iterator[None]:
    with progress_bar(recorder.console) as progress:
        task = progress.add_task(
            "rounds", total=recorder.settings.simulation.rounds, completed=recorder.rounds_done
        )

        def finished(server_round: int) -> None:
            progress.update(task, completed=server_round)
            if watch is not None:
                watch(server_round)

        recorder.on_round = finished
        yield


@contextmanager
def _quiet_flower(log_file: Path) -> Iterator[None]:
    """Send Flower's and Ray's own log lines to a file instead of the terminal."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    handler = logging.FileHandler(log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("flwr", "ray", "zerofl_flwr", "adasplit_flwr")]
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        handler.close()
