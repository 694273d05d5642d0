"""Default values of settings, one by one."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

ON_OTHERS = ("sparsity_schedule", "sparsity_start", "sparsity_rounds", "aggregation")
"""Settings whose default depends on others."""


def default_of(setting: Field[Any]) -> Any:
    """Return a setting's default value; None when it is unset, or depends on other settings."""
    return None if setting.name in ON_OTHERS else setting.default
