"""Small AdaSplit runs for tests: eight clients, of which three train in each of three rounds."""

from __future__ import annotations

from typing import Any

from simulations.settings import RunSettings
from tests.simulations.changed_settings import settings_with

SMALL_SPLIT: dict[str, Any] = {
    "algorithm": "adasplit",
    "num-clients": 8,
    "clients-per-round": 3,
    "rounds": 3,
    "validation-fraction": 0.2,
    "batch-size": 16,
    "iterations-per-round": 3,
    "kappa": 0.4,
    "eta": 0.5,
    "backend": "in-process",
    "seed": 3,
}


def small_split(**changes: Any) -> RunSettings:
    """Settings of a small run; keyword arguments are keys with underscores."""
    return settings_with(SMALL_SPLIT, **changes)
