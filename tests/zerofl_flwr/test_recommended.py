"""The settings that the study recommends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.recommended import recommended_settings
from zerofl_flwr.settings import ZeroFLSettings


def test_a_cubic_ramp_over_six_tenths_of_the_rounds_and_a_mean_over_senders() -> None:
    settings = recommended_settings(100)
    assert settings == ZeroFLSettings(
        sparsity_schedule="cubic",
        sparsity_start=0.3,
        sparsity_rounds=60,
        aggregation="senders",
    )
    # .95 - .65 (1 - t / 60)^3
    assert [settings.plan(t).sparsity for t in (30, 60, 61, 100)] == [0.86875, 0.95, 0.95, 0.95]


@pytest.mark.parametrize(("rounds", "ramp"), [(1, 1), (2, 1), (3, 2), (10, 6), (700, 420)])
def test_the_ramp_is_as_long_as_the_run_asks_for(rounds: int, ramp: int) -> None:
    settings = recommended_settings(rounds)
    assert settings.sparsity_rounds == ramp
    assert settings.plan(rounds).sparsity == 0.95


@pytest.mark.parametrize(
    "ramp",
    [
        {"sparsity_schedule": "constant"},
        {"sparsity_rounds": 0},
        {"sparsity_schedule": "constant", "sparsity_rounds": 0, "sparsity_start": None},
        {"sparsity_schedule": "linear", "sparsity_start": 0.0, "sparsity_rounds": 7},
    ],
)
def test_no_ramp_and_another_whole_ramp_are_left_as_they_are(ramp: dict[str, Any]) -> None:
    assert recommended_settings(100, **ramp) == ZeroFLSettings(aggregation="senders", **ramp)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sparsity_start": 0.5}, ("cubic", 0.5, 60)),
        ({"sparsity_start": 0.0}, ("cubic", 0.0, 60)),
        ({"sparsity_rounds": 5}, ("cubic", 0.3, 5)),
        ({"sparsity_schedule": "linear"}, ("linear", 0.3, 60)),
        ({"sparsity_schedule": "linear", "sparsity_rounds": 9}, ("linear", 0.3, 9)),
        ({"sparsity_start": 0.5, "sparsity_rounds": 9}, ("cubic", 0.5, 9)),
        ({"sparsity_start": None, "sparsity_rounds": 9}, ("cubic", 0.3, 9)),
        # Asked for, so there is a ramp, even one that falls.
        ({"sparsity_start": 0.5, "sparsity": 0.2}, ("cubic", 0.5, 60)),
        ({"sparsity_rounds": 5, "sparsity": 0.3}, ("cubic", 0.3, 5)),
    ],
)
def test_what_is_missing_of_a_ramp_is_filled_in(
    given: dict[str, Any], expected: tuple[str, float, int]
) -> None:
    settings = recommended_settings(100, **given)
    ramp = (settings.sparsity_schedule, settings.sparsity_start, settings.sparsity_rounds)
    assert ramp == expected
    assert settings.plan(100).sparsity == given.get("sparsity", 0.95)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sparsity_schedule": "constant", "sparsity_start": 0.5}, "constant schedule takes"),
        ({"sparsity_schedule": "cubic", "sparsity_rounds": 0}, "needs start and rounds >= 1"),
        ({"sparsity_schedule": "cubical"}, "did you mean 'cubic'"),
        ({"sparsity_rounds": "5"}, "rounds of a schedule must be an int"),
        ({"sparsity_start": 1.5}, "start of a schedule must lie between 0 and 1"),
    ],
)
def test_a_ramp_that_contradicts_itself_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        recommended_settings(100, **given)


def test_all_other_options_are_kept() -> None:
    options: dict[str, Any] = {
        "sparsity": 0.8,
        "mask_ratio": 0.1,
        "rule": "top-k-diff",
        "topk_period": 3,
    }
    settings = recommended_settings(10, aggregation="all-clients", **options)
    assert settings == ZeroFLSettings(
        sparsity_schedule="cubic", sparsity_start=0.3, sparsity_rounds=6, **options
    )


@pytest.mark.parametrize("sparsity", [0.2, 0.3])
def test_a_low_sparsity_needs_no_ramp(sparsity: float) -> None:
    expected = ZeroFLSettings(sparsity=sparsity, aggregation="senders")
    assert recommended_settings(10, sparsity=sparsity) == expected


def test_dense_training_is_plain_averaging() -> None:
    assert recommended_settings(10, sparsity=0.0) == ZeroFLSettings(sparsity=0.0)


def test_strategies_that_average_themselves_keep_all_clients() -> None:
    assert recommended_settings(10, per_client=True).aggregation == "all-clients"


def test_a_ramp_ends_before_its_mask_is_frozen() -> None:
    settings = recommended_settings(100, freeze_mask_after_round=20)
    assert settings.sparsity_rounds == 21
    assert settings.plan(21).frozen
    assert settings.plan(21).sparsity == 0.95
    assert recommended_settings(100, freeze_mask_after_round=20, sparsity_start=0.5) == replace(
        settings, sparsity_start=0.5
    )


@pytest.mark.parametrize("rounds", [0, -1, 2.5, True, "10"])
def test_a_wrong_number_of_rounds_is_refused(rounds: Any) -> None:
    with pytest.raises(SettingsError, match=r"rounds is .*; it must be a whole number from 1"):
        recommended_settings(rounds)


def test_a_wrong_option_is_refused_as_ever() -> None:
    with pytest.raises(SettingsError, match="sparsity"):
        recommended_settings(10, sparsity=1.5)
