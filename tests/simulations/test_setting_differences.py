"""What is said of settings that differ."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.setting_differences import differences
from simulations.settings import RunSettings

BASE = {"rounds": 5, "seed": 3}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"seed": 9}, "seed is 9 instead of 3"),
        ({"rounds": 6, "dataset": "x/y"}, "dataset is 'x/y' instead of 'digits', rounds is 6 ins"),
        ({"image-size": 8}, "image-size is 8 instead of unset"),
    ],
)
def test_settings_that_differ_are_told_by_name(changes: dict[str, Any], said: str) -> None:
    told = differences(RunSettings.from_mapping(BASE | changes), RunSettings.from_mapping(BASE))
    assert told.startswith(said)
    assert bool(told) == bool(changes)


def test_what_is_set_in_one_alone_is_told_of_both_sides() -> None:
    base, sized = (RunSettings.from_mapping(BASE | more) for more in ({}, {"image-size": 8}))
    assert differences(base, sized) == "image-size is unset instead of 8"


def test_another_method_has_other_settings() -> None:
    other = RunSettings.from_mapping(BASE | {"algorithm": "adasplit"})
    told = differences(other, RunSettings.from_mapping(BASE)).split(", ")
    assert "algorithm is 'adasplit' instead of 'zerofl'" in told
    assert "kappa is 0.6 instead of unset" in told
    assert "topk-period is unset instead of 10" in told
    assert not any(text.startswith(("rounds", "seed")) for text in told)
