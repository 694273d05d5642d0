"""Settings of the whole test run: nothing phones home, no user cache, no race with a clock."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

settings.register_profile("lean-flwr", deadline=None)
settings.load_profile("lean-flwr")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepare data sets in a folder of this test run, which its subprocesses use as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAN_FLWR_CACHE", str(tmp_path_factory.mktemp("lean-flwr-cache")))
        yield
