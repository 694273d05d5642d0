"""Ray, started before Flower; a stand-in for Ray where nothing has to start."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import ray

from simulations.ray_cluster import check_address, ray_cluster
from simulations.simulation_settings import SimulationSettings
from zerofl_flwr.errors import SettingsError


class StandIn:
    """Answers like the ray module."""

    def __init__(self, nodes: list[dict[str, float]], error: Exception | None = None) -> None:
        self.cluster = [{"Resources": resources} for resources in nodes]
        self.error = error
        self.started: list[dict[str, Any]] = []
        self.running = False
        self.stopped = 0

    def use(self, monkeypatch: pytest.MonkeyPatch) -> StandIn:
        for name in ("is_initialized", "init", "nodes", "shutdown"):
            monkeypatch.setattr(ray, name, getattr(self, name))
        return self

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **options: Any) -> None:
        self.started.append(options)
        if self.error is not None:
            raise self.error
        self.running = True

    def nodes(self) -> list[dict[str, Any]]:
        return self.cluster

    def shutdown(self) -> None:
        self.running = False
        self.stopped += 1


def test_a_cluster_of_its_own_has_the_cpus_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.syspath_prepend("/my/models")
    fake = StandIn([{"CPU": 3}]).use(monkeypatch)
    with ray_cluster(SimulationSettings(cpus_per_client=3)):
        assert fake.running
        [options] = fake.started
        assert options["address"] == "local"
        assert options["num_cpus"] == 3
        search_path = options["runtime_env"]["env_vars"]["PYTHONPATH"].split(os.pathsep)
        assert search_path[0] == "/my/models"
        assert search_path[-1] == "/somewhere/else"
        assert "" not in search_path
    assert (fake.running, fake.stopped) == (False, 1)


def test_a_running_cluster_is_joined_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = StandIn([{}, {"CPU": 1}, {"CPU": 8, "GPU": 1}]).use(monkeypatch)
    simulation = SimulationSettings(
        ray_address="10.0.0.1:6379", cpus_per_client=4, gpus_per_client=0.5
    )
    with ray_cluster(simulation):
        [options] = fake.started
        assert options["address"] == "10.0.0.1:6379"
        assert "num_cpus" not in options


def test_a_ray_of_this_process_is_used_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = StandIn([{"CPU": 1}]).use(monkeypatch)
    fake.running = True
    with ray_cluster(SimulationSettings()):
        assert fake.started == []
        ray.shutdown()  # as Flower does at the end of a run
        assert fake.running
    assert (fake.running, fake.stopped) == (True, 0)
    with pytest.raises(KeyboardInterrupt), ray_cluster(SimulationSettings()):
        raise KeyboardInterrupt
    with (
        pytest.raises(SettingsError, match="no node of the Ray cluster has as much"),
        ray_cluster(SimulationSettings(cpus_per_client=2)),
    ):
        raise AssertionError("must not get here")
    assert (fake.running, fake.stopped) == (True, 0)
    ray.shutdown()
    assert not fake.running


def test_an_address_is_refused_where_ray_runs_already(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = StandIn([{"CPU": 1}]).use(monkeypatch)
    fake.running = True
    with (
        pytest.raises(SettingsError, match=r"ray-address is 'auto', but this process runs Ray"),
        ray_cluster(SimulationSettings(ray_address="auto")),
    ):
        raise AssertionError("must not get here")
    assert (fake.running, fake.stopped) == (True, 0)


def test_ray_stops_when_the_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = StandIn([{"CPU": 1}]).use(monkeypatch)
    with pytest.raises(KeyboardInterrupt), ray_cluster(SimulationSettings()):
        raise KeyboardInterrupt
    assert not fake.running


@pytest.mark.parametrize(
    ("nodes", "offer"),
    [
        ([{"CPU": 2.0}, {"CPU": 3.0}], "2 CPU, 0 GPU; 3 CPU, 0 GPU"),
        ([{"CPU": 8.0}, {"CPU": 1.0, "GPU": 4.0}], "8 CPU, 0 GPU; 1 CPU, 4 GPU"),
        ([], "it has no nodes"),
    ],
)
def test_a_cluster_without_room_for_one_client_is_refused(
    monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], offer: str
) -> None:
    fake = StandIn(nodes).use(monkeypatch)
    simulation = SimulationSettings(cpus_per_client=4, gpus_per_client=0.5)
    message = f"a client needs 4 CPU and 0.5 GPU, but no node of the Ray cluster .*: {offer}"
    with pytest.raises(SettingsError, match=message), ray_cluster(simulation):
        raise AssertionError("must not get here")
    assert not fake.running


@pytest.mark.parametrize("error", [ConnectionError("no"), RuntimeError("no"), ValueError("no")])
@pytest.mark.parametrize(
    ("address", "what"), [(None, "start Ray on this machine"), ("auto", "connect to Ray at auto")]
)
def test_ray_that_does_not_start_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, address: str | None, what: str
) -> None:
    StandIn([], error).use(monkeypatch)
    simulation = SimulationSettings(ray_address=address)
    with pytest.raises(SettingsError, match=f"cannot {what}: no"), ray_cluster(simulation):
        raise AssertionError("must not get here")


@pytest.mark.parametrize(
    "address", ["", "nonsense", "host:", "host:port", "http://host:1", "ray://host", "host:123456"]
)
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="expected HOST:PORT, ray://HOST:PORT or auto"):
        check_address(address)


def test_a_host_that_does_not_exist_and_a_port_out_of_range_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match=r"127\.0\.0\.1:99999: nothing answers there"):
        check_address("127.0.0.1:99999")

    def fail(address: object, timeout: float) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(SettingsError, match="Name or service not known"):
        check_address("no.such.host:6379")


def test_ray_may_look_for_the_cluster_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda *arguments: asked.append(arguments))
    check_address("auto")
    assert asked == []
