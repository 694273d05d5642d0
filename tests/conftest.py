"""Settings of the whole test run: nothing phones home, property tests do not race a clock."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

settings.register_profile("lean-flwr", deadline=None)
settings.load_profile("lean-flwr")
