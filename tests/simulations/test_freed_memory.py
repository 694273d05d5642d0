"""Memory that threads freed goes back to the operating system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from simulations import freed_memory
from simulations.freed_memory import return_freed_memory

# Blocks that glibc takes from a thread's own heap, with one kept at its end: freeing the others
# leaves free pages below it, as a round's replies do.
SCRIPT = """
import threading, psutil
from simulations.freed_memory import return_freed_memory

kept = []

def receive():
    blocks = [b"x" * 100_000 for _ in range(400)]
    kept.append(blocks[-1])

thread = threading.Thread(target=receive)
thread.start()
thread.join()
before = psutil.Process().memory_info().rss
returned = return_freed_memory()
print(int(returned), before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(
    not (sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="needs glibc",
)
def test_pages_that_a_thread_freed_are_returned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    returned, fewer_bytes = map(int, done.stdout.split())
    assert returned == 1
    assert fewer_bytes > 20_000_000


def test_without_such_a_function_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_malloc_trim", lambda: None)
    assert return_freed_memory() is False
