"""Fixtures of the simulations' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds, and is tested on its own."""
    monkeypatch.setattr("simulations.recorder.write_plots", lambda folder: [])


@pytest.fixture(scope="session")
def split_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished small AdaSplit run, which no test may change."""
    # Imported here, as most tests need no runs.
    from tests.simulations.small_runs import run_undrawn
    from tests.simulations.small_split_runs import small_split

    return run_undrawn(small_split(), tmp_path_factory.mktemp("split") / "run")
