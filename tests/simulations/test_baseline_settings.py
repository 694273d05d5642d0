"""Settings of baselines, on their own."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.baseline_settings import BaselineSettings
from zerofl_flwr.errors import SettingsError


def test_by_default_one_good_reply_is_enough() -> None:
    assert BaselineSettings() == BaselineSettings(on_failure="skip", min_replies=1, state_dir=None)
    assert BaselineSettings(on_failure="raise", min_replies=7).min_replies == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on_failure": "rais"}, "unknown on_failure 'rais'; did you mean 'raise'"),
        ({"min_replies": 0}, "min_replies is 0; it must be at least 1"),
    ],
)
def test_values_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BaselineSettings(**changes)
