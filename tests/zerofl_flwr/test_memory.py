"""A process's peak memory, as a client tells it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from zerofl_flwr.memory import memory_metric

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what Linux tells")


@linux
def test_kibibytes_become_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(ru_maxrss=1_000_000)
    monkeypatch.setattr("resource.getrusage", lambda who: told)
    assert memory_metric() == {"client_memory_mb": 1024.0}


@linux
def test_the_peak_is_that_of_the_kernels_own_report() -> None:
    told = memory_metric()["client_memory_mb"]
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    assert told == pytest.approx(int(found[1]) * 1.024e-3, rel=0.05)
