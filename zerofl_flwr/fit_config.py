"""What a server says of a round's training in the message's config, beside a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.training import TrainingSettings


def training_in(config: Mapping[str, Any], settings: TrainingSettings) -> TrainingSettings:
    """Return a client's settings with the round's ``learning-rate`` and ``local-epochs``.

    Raises
    ------
    SettingsError
        If an entry has a wrong type or value.
    """
    return replace(
        settings,
        learning_rate=number_in(config, "learning-rate", settings.learning_rate),
        local_epochs=config.get("local-epochs", settings.local_epochs),  # the settings check it
    )


def number_in(config: Mapping[str, Any], key: str, default: float) -> float:
    """Read a number from 0; the default where there is none.

    Raises
    ------
    SettingsError
        If it is something else.
    """
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise SettingsError(f"config entry {key} is {value!r}; expected a number from 0")
    return float(value)
