"""AdaSplit's settings: what cannot work is refused when they are built."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adasplit_flwr.settings import CHOICES, AdaSplitSettings
from zerofl_flwr.errors import SettingsError


def test_the_defaults_are_the_decisions_of_the_method() -> None:
    settings = AdaSplitSettings()
    assert (settings.kappa, settings.eta, settings.gamma) == (0.6, 0.6, 0.75)
    assert (settings.selection, settings.mask, settings.client_weights) == (
        "ucb",
        "soft",
        "personal",
    )
    assert (settings.server_gradient, settings.mask_penalty, settings.temperature) == (
        "none",
        1e-3,
        0.07,
    )
    assert (settings.adam_learning_rate, settings.adam_weight_decay) == (1e-3, 1e-5)


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_an_unknown_choice_names_the_known_ones(name: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown {name} 'sofd'.*known: "):
        AdaSplitSettings(**{name: "sofd"})  # type: ignore[arg-type]  # as a user may


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("kappa", -0.1, "kappa"),
        ("kappa", 1.5, "kappa"),
        ("kappa", 1, "kappa is 1: there would be no global phase"),
        ("eta", 0, "eta is 0: no client"),
        ("eta", math.nan, "eta"),
        ("gamma", 0, r"gamma is 0; it must be in \(0, 1\]"),
        ("gamma", 1.1, "gamma is 1.1"),
        ("mask_penalty", -1.0, "mask_penalty is -1.0; it must be a number from 0"),
        ("activation_penalty", math.inf, "activation_penalty is inf"),
        ("adam_weight_decay", "0", "adam_weight_decay is '0'; it must be a number"),
        ("temperature", 0.0, "temperature is 0.0; it must be a positive number"),
        ("adam_learning_rate", True, "adam_learning_rate is True; it must be a number"),
        ("iterations_per_round", 0, "iterations_per_round is 0; it must be a whole number from 1"),
        ("iterations_per_round", 1.0, "iterations_per_round is 1.0"),
        ("share_every", 0, "share_every is 0; it must be a whole number from 1"),
        ("share_every", None, "share_every is None; it must be a whole number from 1"),
        ("mask_memory_mb", 0, "mask_memory_mb is 0"),
        ("mask_memory_mb", None, "mask_memory_mb is None; it must be a whole number from 1"),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: Any, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        AdaSplitSettings(**{name: value})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"local_loss": False}, "local_loss is off.*set kappa to 0, it is 0.6"),
        (
            {"local_loss": False, "kappa": 0.0, "activation_penalty": 0.1},
            "activation_penalty is a part of the clients' own loss",
        ),
        (
            {"local_loss": False, "kappa": 0.0, "client_weights": "averaged"},
            "client_weights is 'averaged', but client parts never change",
        ),
        (
            {"share_every": 3},
            "share_every is 3, but with client_weights 'personal' nothing is shared: leave it at 1",
        ),
        (
            {"selection": "all", "eta": 0.5},
            "eta is 0.5, but with selection 'all' everybody uploads: leave it at 0.6",
        ),
        (
            {"selection": "random", "gamma": 0.9},
            "gamma is 0.9, but with selection 'random' the orchestrator picks nobody",
        ),
        ({"selection": "all", "gamma": 0.9}, "gamma is 0.9, but with selection 'all'"),
        (
            {"mask": "none", "mask_penalty": 0.0},
            "mask_penalty is 0.0, but with mask 'none' there is nothing to penalise: leave it at",
        ),
        ({"mask": "none", "mask_memory_mb": 9}, "mask_memory_mb is 9, but with mask 'none'"),
        (
            {"local_loss": False, "kappa": 0.0, "temperature": 0.5},
            "temperature is 0.5, but with local_loss off there is no contrastive loss",
        ),
    ],
)
def test_settings_that_do_not_fit_together_say_why(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        AdaSplitSettings(**options)


def test_what_has_no_effect_may_stay_at_its_default() -> None:
    settings = AdaSplitSettings(
        selection="all", eta=0.6, gamma=0.75, mask="none", mask_penalty=1e-3, mask_memory_mb=1024
    )
    assert settings.uploads(5) == 5
    assert AdaSplitSettings(client_weights="averaged", server_gradient="selected").eta == 0.6
    assert AdaSplitSettings().iterations_per_round is None


def test_a_frozen_client_and_a_client_that_only_follows_the_server_are_allowed() -> None:
    frozen = AdaSplitSettings(local_loss=False, kappa=0.0)
    follower = AdaSplitSettings(local_loss=False, kappa=0.0, server_gradient="selected")
    assert not frozen.local_loss
    assert follower.server_gradient == "selected"


@pytest.mark.parametrize("weights", ["averaged", "relayed"])
def test_split_learning_and_its_federated_form_are_settings(weights: str) -> None:
    settings = AdaSplitSettings(
        kappa=0.0,
        selection="all",
        local_loss=False,
        mask="none",
        server_gradient="selected",
        iterations_per_round=1,
        client_weights=weights,
        share_every=63,
    )
    assert (settings.shares_weights, settings.returns_gradients) == (True, True)
    assert (AdaSplitSettings().shares_weights, AdaSplitSettings().returns_gradients) == (
        False,
        False,
    )


def test_a_phase_is_that_of_the_round() -> None:
    phases = [AdaSplitSettings(kappa=0.5).phase_of(number, 5) for number in range(1, 6)]
    assert phases == ["local", "local", "global", "global", "global"]


@pytest.mark.parametrize(
    ("kappa", "rounds", "local"),
    [(0.6, 20, 12), (0.6, 1260, 756), (0.29, 100, 29), (0.0, 7, 0), (0.99, 10, 9), (0.5, 1, 0)],
)
def test_the_local_phase_is_floor_kappa_times_rounds_exactly(
    kappa: float, rounds: int, local: int
) -> None:
    # 0.29 * 100 is 28.999999999999996 in floating point
    assert AdaSplitSettings(kappa=kappa).local_rounds(rounds) == local


def test_a_run_needs_a_round() -> None:
    with pytest.raises(SettingsError, match="rounds is 0"):
        AdaSplitSettings().local_rounds(0)


@pytest.mark.parametrize(
    ("eta", "selection", "trainers", "uploads"),
    [
        (0.6, "ucb", 5, 3),
        (0.2, "random", 50, 10),
        (0.5, "ucb", 5, 3),
        (0.1, "ucb", 4, 1),
        (0.6, "all", 4, 4),
        (1.0, "ucb", 4, 4),
    ],
)
def test_eta_counts_who_uploads(eta: float, selection: str, trainers: int, uploads: int) -> None:
    assert AdaSplitSettings(eta=eta, selection=selection).uploads(trainers) == uploads


def test_the_learning_rate_is_constant_unless_asked() -> None:
    assert {AdaSplitSettings().learning_rate_at(t, 20) for t in range(1, 21)} == {1e-3}


def test_the_cosine_falls_in_the_global_phase_alone() -> None:
    settings = AdaSplitSettings(adam_schedule="cosine")
    rates = [settings.learning_rate_at(t, 20) for t in range(1, 21)]
    assert rates[:13] == [1e-3] * 13  # twelve local rounds, and the first global one
    # e = 1 and 7 of 22: (1 + cos(pi / 22)) / 2 and (1 + cos(7 pi / 22)) / 2
    assert rates[13] == pytest.approx(0.994910721e-3)
    assert rates[19] == pytest.approx(0.770320320e-3)
