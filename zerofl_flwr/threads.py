"""Keep a client inside the CPUs that it was given, and on its device."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from zerofl_flwr.errors import SettingsError


def available_cpus() -> int:
    """Return how many CPUs this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_threads(count: int) -> None:
    """Let torch, and numba where it is loaded, use ``count`` threads.

    Each simulated client is a process (or runs inside one); without this, two of them on two cores
    would start four threads and slow each other down.

    Parameters
    ----------
    count : int
        CPUs given to this client.

    Raises
    ------
    SettingsError
        If ``count`` is below 1.
    """
    if count < 1:
        raise SettingsError(f"a client needs at least 1 thread, not {count}")
    numba = sys.modules.get("numba")
    if numba is not None:
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    # After numba, whose first call starts its threads and resets OpenMP's number, torch's too.
    torch.set_num_threads(count)


def use_hardware(device: str, threads: int | None) -> None:
    """See that a client has its device, and limit its threads.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    threads : int, optional
        As for :func:`limit_threads`; None leaves torch's setting alone.

    Raises
    ------
    SettingsError
        If there is no such device, or ``threads`` is below 1.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SettingsError(f"device {device!r} was asked for, but torch finds no CUDA device")
    if threads is not None:
        limit_threads(threads)


@contextmanager
def threads_restored() -> Iterator[None]:
    """Give torch back its number of threads afterwards: clients of this process change it."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
