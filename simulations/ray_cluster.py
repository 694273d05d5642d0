"""Start Ray, or connect to a running cluster, before Flower does."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulations.simulation_settings import SimulationSettings
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.threads import available_cpus

_CONNECT_SECONDS = 5.0


@contextmanager
def ray_cluster(simulation: SimulationSettings) -> Iterator[None]:
    """Have Ray running, with room for at least one client.

    Flower uses a Ray that runs already. Left to start it itself, Flower would do so while its
    server thread waits for clients: an error then never ends that thread, nor the process. What is
    started here ends here; a Ray that this process had started before goes on.

    Parameters
    ----------
    simulation : SimulationSettings
        Where the cluster is, and what a client needs of it.

    Raises
    ------
    SettingsError
        If no cluster can be reached or started, none of its nodes has room for a client, or an
        address is given where Ray runs already.
    """
    import ray

    if ray.is_initialized():
        if simulation.ray_address is not None:
            raise SettingsError(
                f"ray-address is {simulation.ray_address!r}, but this process runs Ray already: "
                "leave it out to use that Ray, or call ray.shutdown() first"
            )
        _check_room(ray.nodes(), simulation)  # type: ignore[no-untyped-call]
        with _kept_running():
            yield
        return
    _start(simulation.ray_address)
    try:
        _check_room(ray.nodes(), simulation)  # type: ignore[no-untyped-call]
        yield
    finally:
        ray.shutdown()


@contextmanager
def _kept_running() -> Iterator[None]:
    """Keep Flower, which shuts Ray down after every run, from doing so."""
    import ray

    shutdown = ray.shutdown
    ray.shutdown = lambda *_, **__: None
    try:
        yield
    finally:
        ray.shutdown = shutdown


def check_address(address: str) -> None:
    """Refuse an address that nobody listens at; Ray itself would try for minutes.

    Raises
    ------
    SettingsError
        If the address is malformed or does not answer within 5 seconds.
    """
    if address == "auto":
        return
    parts = re.fullmatch(r"(?:ray://)?([^/:]+):(\d{1,5})", address)
    if parts is None:
        raise SettingsError(
            f"ray-address is {address!r}; expected HOST:PORT, ray://HOST:PORT or auto"
        )
    try:
        with socket.create_connection((parts[1], int(parts[2])), timeout=_CONNECT_SECONDS):
            pass
    except (OSError, OverflowError) as error:
        raise SettingsError(f"ray-address {address}: nothing answers there ({error})") from None


def _start(address: str | None) -> None:
    import ray

    options: dict[str, Any] = {"address": address}
    if address is None:  # said outright, since RAY_ADDRESS may be set for something else
        options = {"address": "local", "num_cpus": available_cpus(), "include_dashboard": False}
    search_path = [*sys.path, os.environ.get("PYTHONPATH", "")]
    try:
        ray.init(
            # Workers must find what this process has found.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, search_path))}},
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = f"connect to Ray at {address}" if address else "start Ray on this machine"
        raise SettingsError(f"cannot {where}: {error}") from error


def _check_room(nodes: list[dict[str, Any]], simulation: SimulationSettings) -> None:
    """Check what Flower counts: clients that fit on one node."""
    wanted = {"CPU": float(simulation.cpus_per_client), "GPU": simulation.gpus_per_client}
    for node in nodes:
        if all(node["Resources"].get(kind, 0) >= amount for kind, amount in wanted.items()):
            return
    offered = [
        ", ".join(f"{node['Resources'].get(kind, 0):g} {kind}" for kind in wanted) for node in nodes
    ]
    raise SettingsError(
        f"a client needs {wanted['CPU']:g} CPU and {wanted['GPU']:g} GPU, but no node of the Ray "
        f"cluster has as much: {'; '.join(offered) or 'it has no nodes'}"
    )
