"""Threads of a client, and how many CPUs there are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.threads import available_cpus, limit_threads, threads_restored, use_hardware


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
def test_torch_uses_as_many_threads_as_given(count: int) -> None:
    limit_threads(count)
    assert torch.get_num_threads() == count


def test_the_limit_holds_in_the_thread_that_sets_it() -> None:
    limit_threads(2)
    seen: list[int] = []

    def client() -> None:
        limit_threads(1)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=client)
    thread.start()
    thread.join()
    assert seen == [1]


@pytest.mark.parametrize("count", [0, -1])
def test_no_thread_is_refused(count: int) -> None:
    with pytest.raises(SettingsError, match=f"at least 1 thread, not {count}"):
        limit_threads(count)


def test_a_clients_hardware_is_its_device_and_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_threads(2)
    use_hardware("cpu", None)
    assert torch.get_num_threads() == 2
    use_hardware("cpu", 1)
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "device 'cuda:1' was asked for, but torch finds no CUDA device"
    with pytest.raises(SettingsError, match=message):
        use_hardware("cuda:1", 2)
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    use_hardware("cuda:1", 2)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("given", "expected"), [(3, 3), (64, 8)])
def test_numba_is_limited_where_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, given: int, expected: int
) -> None:
    told: list[int] = []
    numba = SimpleNamespace(
        set_num_threads=told.append, config=SimpleNamespace(NUMBA_NUM_THREADS=8)
    )
    monkeypatch.setitem(sys.modules, "numba", numba)
    limit_threads(given)
    assert told == [expected]


def test_starting_numbas_threads_leaves_torchs_limit() -> None:
    pytest.importorskip("numba")  # comes with the extra "audio", which `make` installs
    script = (
        "import numba, torch; from zerofl_flwr.threads import limit_threads; "
        "torch.get_num_threads(); limit_threads(1); print(torch.get_num_threads())"
    )
    # Numba's threads start once in a process: this takes a new one. Torch's first look at its
    # number, which applies the one last set, comes before, as where torch has been used already.
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1"]


def test_cpus_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
    assert available_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert available_cpus() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cpus() == 1


def test_threads_come_back_after_an_error_too() -> None:
    def fail() -> None:
        with threads_restored():
            limit_threads(1)
            raise ZeroDivisionError

    limit_threads(2)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == 2
