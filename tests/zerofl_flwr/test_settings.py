"""ZeroFL's settings, and the plan of a round that goes to the clients."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.settings import RoundPlan, ZeroFLSettings

PLAN = RoundPlan(
    server_round=7,
    sparsity=0.9,
    mask_ratio=0.2,
    activation_sparsity=0.8,
    gradient_sparsity=0.1,
    topk_period=5,
    rule="top-k-diff",
    frozen=True,
)
CONFIG = {
    "zerofl-server-round": 7,
    "zerofl-sparsity": 0.9,
    "zerofl-mask-ratio": 0.2,
    "zerofl-activation-sparsity": 0.8,
    "zerofl-gradient-sparsity": 0.1,
    "zerofl-topk-period": 5,
    "zerofl-rule": "top-k-diff",
    "zerofl-frozen": True,
}


def test_the_defaults_are_the_papers() -> None:
    plan = ZeroFLSettings().plan(1)
    assert plan == RoundPlan(1, 0.95, 0.2, 0.95, 0.0, 10, "top-k-weights", False)
    assert ZeroFLSettings().aggregation == "all-clients"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparsity": 1.5}, "sparsity must lie between 0 and 1, got 1.5"),
        ({"sparsity": -0.1}, "sparsity must lie between 0 and 1"),
        ({"sparsity": math.nan}, "sparsity must lie between 0 and 1, got nan"),
        ({"sparsity": "much"}, "sparsity must be a number from 0 to 1, got 'much'"),
        ({"mask_ratio": 2}, "mask_ratio must lie between 0 and 1"),
        ({"gradient_sparsity": 1.01}, "gradient_sparsity must lie between 0 and 1"),
        ({"activation_sparsity": -1}, "activation_sparsity must lie between 0 and 1"),
        (
            {"rule": "top-k-weight"},
            "unknown uplink rule 'top-k-weight'; did you mean 'top-k-weights'",
        ),
        ({"aggregation": "everybody"}, "unknown aggregation 'everybody'; did you mean 'senders'"),
        ({"on_failure": "ignore"}, "unknown on_failure 'ignore'; did you mean 'raise'"),
        ({"topk_period": 0}, "topk_period is 0; it must be a whole number from 1"),
        ({"topk_period": 2.0}, "topk_period is 2.0; it must be a whole number from 1"),
        ({"topk_period": "10"}, "topk_period is '10'; it must be a whole number"),
        ({"min_replies": 0}, "min_replies is 0; it must be a whole number from 1"),
        ({"freeze_mask_after_round": 0}, "the first round that a mask can be frozen after is 1"),
        ({"freeze_mask_after_round": 1.5}, "freeze_mask_after_round is 1.5"),
        (
            {"per_client": True, "aggregation": "senders"},
            "aggregation must stay 'all-clients'",
        ),
        (
            {"sparsity": 0.5, "mask_ratio": 0.6},
            "mask_ratio 0.6 is larger than sparsity 0.5",
        ),
        ({"sparsity_schedule": "linaer"}, "unknown schedule shape 'linaer'; did you mean 'linear'"),
        ({"sparsity_schedule": "linear"}, "needs start and rounds >= 1"),
        ({"sparsity_start": 0.5}, "a constant schedule takes neither start"),
        ({"mask_ratio_rounds": 5}, "a constant schedule takes neither start"),
        (
            {"mask_ratio_schedule": "cosine", "mask_ratio_start": 1.5, "mask_ratio_rounds": 5},
            "start of a schedule must lie between 0 and 1, got 1.5",
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ZeroFLSettings(**changes)


def test_a_mask_is_not_frozen_before_the_sparsity_has_settled() -> None:
    ramp = {"sparsity_schedule": "cubic", "sparsity_start": 0.3, "sparsity_rounds": 20}
    with pytest.raises(SettingsError, match="the sparsity changes until round 20"):
        ZeroFLSettings(**ramp, freeze_mask_after_round=18)  # type: ignore[arg-type]
    # The mask frozen after round 19 is that of round 20, the first of the final sparsity.
    settings = ZeroFLSettings(**ramp, freeze_mask_after_round=19)  # type: ignore[arg-type]
    assert settings.plan(20).frozen
    assert settings.plan(20).sparsity == 0.95


def test_the_ratio_may_equal_the_sparsity_and_means_nothing_without_one() -> None:
    assert ZeroFLSettings(sparsity=0.95, mask_ratio=0.95).plan(1).mask_ratio == 0.95
    assert ZeroFLSettings(sparsity=0.0, mask_ratio=0.2).plan(1).mask_ratio == 0.0


def test_the_papers_other_name_of_a_rule_is_made_canonical() -> None:
    assert ZeroFLSettings(rule="top-k-gradients").rule == "top-k-diff"
    assert ZeroFLSettings(rule="top-k-gradients") == ZeroFLSettings(rule="top-k-diff")


def test_a_plan_follows_both_schedules() -> None:
    settings = ZeroFLSettings(
        sparsity=0.9,
        sparsity_schedule="linear",
        sparsity_start=0.1,
        sparsity_rounds=8,
        mask_ratio=0.1,
        mask_ratio_schedule="linear",
        mask_ratio_start=0.5,
        mask_ratio_rounds=4,
    )
    plans = [settings.plan(t) for t in (1, 2, 4, 8, 9)]
    assert [plan.sparsity for plan in plans] == pytest.approx([0.2, 0.3, 0.5, 0.9, 0.9])
    # 0.4 in the first round would be more than the sparsity, which uploads everything already.
    assert [plan.mask_ratio for plan in plans] == pytest.approx([0.2, 0.3, 0.1, 0.1, 0.1])
    assert [plan.activation_sparsity for plan in plans] == [plan.sparsity for plan in plans]


def test_activations_keep_a_sparsity_of_their_own() -> None:
    settings = ZeroFLSettings(activation_sparsity=0.0)
    assert settings.plan(3).activation_sparsity == 0.0
    assert settings.plan(3).sparsity == 0.95


def test_the_mask_freezes_after_its_round() -> None:
    settings = ZeroFLSettings(freeze_mask_after_round=2)
    assert [settings.plan(t).frozen for t in (1, 2, 3, 4)] == [False, False, True, True]


def test_settings_are_frozen_and_equal_by_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ZeroFLSettings().sparsity = 0.5  # type: ignore[misc]
    assert hash(ZeroFLSettings()) == hash(ZeroFLSettings())


def test_a_plan_travels_as_scalars() -> None:
    assert PLAN.to_config() == CONFIG
    assert RoundPlan.from_config(CONFIG) == PLAN
    assert RoundPlan.from_config({"learning-rate": 0.1, **CONFIG}) == PLAN


def test_a_config_of_another_strategy_has_no_plan() -> None:
    assert RoundPlan.from_config({}) is None
    assert RoundPlan.from_config({"learning-rate": 0.1, "sparsity": 0.5}) is None


def test_whole_numbers_stand_for_floats_but_not_the_other_way() -> None:
    plan = RoundPlan.from_config(CONFIG | {"zerofl-sparsity": 1, "zerofl-gradient-sparsity": 0})
    assert plan is not None
    assert (plan.sparsity, plan.gradient_sparsity) == (1.0, 0.0)
    assert isinstance(plan.sparsity, float)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("zerofl-server-round", 7.0, "int"),
        ("zerofl-server-round", True, "int"),
        ("zerofl-sparsity", "0.9", "float"),
        ("zerofl-sparsity", False, "float"),
        ("zerofl-topk-period", "5", "int"),
        ("zerofl-rule", 3, "str"),
        ("zerofl-frozen", 1, "bool"),
    ],
)
def test_a_wrong_type_is_refused_by_name(key: str, value: object, expected: str) -> None:
    message = f"config entry {key} is {value!r}; expected a {expected}"
    with pytest.raises(SettingsError, match=message):
        RoundPlan.from_config(CONFIG | {key: value})


@pytest.mark.parametrize("key", CONFIG)
def test_a_missing_entry_is_named(key: str) -> None:
    rest = {other: value for other, value in CONFIG.items() if other != key}
    with pytest.raises(SettingsError, match=f"the round's config lacks {key}$"):
        RoundPlan.from_config(rest)


@pytest.mark.parametrize(("sparsity", "ratio"), [(0.95, 0.2), (0.1, 0.1), (0.0, 0.0)])
def test_the_mask_ratio_fits_the_sparsity_by_default(sparsity: float, ratio: float) -> None:
    assert ZeroFLSettings(sparsity=sparsity).plan(1).mask_ratio == ratio
