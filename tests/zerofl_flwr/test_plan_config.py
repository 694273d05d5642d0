"""Plans travel as scalars of a Flower config and come back the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.plan_config import from_config, to_config


@dataclass(frozen=True)
class Plan:
    server_round: int
    share: float
    rule: str
    frozen: bool


PLAN = Plan(server_round=3, share=0.5, rule="a", frozen=True)
CONFIG = {"our-server-round": 3, "our-share": 0.5, "our-rule": "a", "our-frozen": True}


def test_a_plan_becomes_kebab_case_entries_and_back() -> None:
    assert to_config(PLAN, "our-") == CONFIG
    assert from_config(Plan, {**CONFIG, "lr": 0.1, "server-round": 9}, "our-") == PLAN


def test_a_config_without_any_entry_holds_no_plan() -> None:
    assert from_config(Plan, {"server-round": 3, "share": 0.5}, "our-") is None


def test_a_whole_number_may_stand_for_a_float() -> None:
    plan = from_config(Plan, {**CONFIG, "our-share": 1}, "our-")
    assert plan is not None
    assert (plan.share, type(plan.share)) == (1.0, float)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("our-server-round", True, "a int"),
        ("our-server-round", 3.0, "a int"),
        ("our-share", "0.5", "a float"),
        ("our-share", True, "a float"),
        ("our-rule", 1, "a str"),
        ("our-frozen", 1, "a bool"),
    ],
)
def test_a_wrong_type_is_named(key: str, value: Any, expected: str) -> None:
    with pytest.raises(
        SettingsError, match=f"config entry {key} is {value!r}; expected {expected}"
    ):
        from_config(Plan, {**CONFIG, key: value}, "our-")


def test_missing_entries_are_all_named() -> None:
    with pytest.raises(SettingsError, match=r"config lacks our-frozen, our-share$"):
        from_config(Plan, {"our-server-round": 3, "our-rule": "a"}, "our-")
