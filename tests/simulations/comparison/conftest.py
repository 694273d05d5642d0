"""Fixtures of the comparisons' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulations.run_folders import seed_run


@pytest.fixture
def two_seeds(tmp_path: Path) -> list[Path]:
    """Return two runs of a method, each with a round that was not tested."""
    return [
        seed_run(tmp_path / "a", [0.9, 0.10, 0.20, 0.30, None, 0.50]),
        seed_run(tmp_path / "b", [0.9, 0.20, 0.40, None, 0.80, 0.60]),
    ]
