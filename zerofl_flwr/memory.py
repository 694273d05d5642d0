"""How much memory a client's process has taken at most; it tells the server with its reply."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource

MEMORY = "client_memory_mb"
"""Metric of a reply to a training message."""
_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of what the system tells


def memory_metric() -> dict[str, float]:
    """Return the metric :data:`MEMORY`: this process's peak resident memory, in 10^6 bytes.

    It is the most since the process began, whatever it did then: under a simulation's in-process
    backend that is the whole driver with all of its clients, and a worker of Ray has served several
    clients.

    Returns
    -------
    dict of str to float
        Empty on Windows, which does not tell.
    """
    if sys.platform == "win32":
        return {}
    return {MEMORY: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT / 1e6}
