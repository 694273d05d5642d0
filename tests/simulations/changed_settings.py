"""Settings of a test's runs: what they have in common, and what one of them has otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulations.settings import RunSettings


def kebab(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Turn names with underscores into keys of settings."""
    return {name.replace("_", "-"): value for name, value in changes.items()}


def settings_with(common: Mapping[str, Any], /, **changes: Any) -> RunSettings:
    """Build settings from common ones; keyword arguments are keys with underscores."""
    return RunSettings.from_mapping({**common, **kebab(changes)})
