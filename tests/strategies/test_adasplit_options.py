"""What cannot work is refused when the strategy is built, with the reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch import nn

from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_options import Participation, cut_shapes, settings_of, share_of
from tests.strategies.adasplit_federation import CLASSES, CUT, FEATURES, adasplit, tiny_split
from zerofl_flwr.errors import SettingsError

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no rounds": ({"rounds": 0}, "rounds is 0; it must be a whole number from 1"),
    "rounds that are no number": ({"rounds": 2.0}, r"rounds is 2\.0; it must be a whole"),
    "a share above 1": ({"fraction_fit": 1.5}, "fraction_fit must lie between 0 and 1"),
    "a share that is text": ({"fraction_fit": "1"}, "fraction_fit must be a number"),
    "a share of tests": ({"fraction_evaluate": -0.1}, "fraction_evaluate must lie between"),
    "none trains": ({"min_fit_clients": 0}, "min_fit_clients is 0; it must be a whole number"),
    "none is there": ({"min_available_clients": True}, "min_available_clients is True"),
    "tests every 0 rounds": ({"evaluate_every": 0}, "evaluate_every is 0"),
    "a run that is no name": ({"run": "a/b"}, "'a/b' cannot name a run"),
    "no classes": ({"num_classes": 0}, "num_classes is 0"),
    "more classes than outputs": (
        {"num_classes": 4},
        "the server part has 3 outputs; expected one for each of 4 classes",
    ),
    "samples that do not fit": ({"sample_shape": (FEATURES + 1,)}, "client"),
    "batches of no samples": ({"max_batch_size": 0}, "max_batch_size is 0"),
    "no megabytes": ({"max_upload_mb": 0}, "max_upload_mb is 0; it must be a positive number"),
    "endless megabytes": ({"max_upload_mb": math.inf}, "max_upload_mb is inf"),
    "megabytes that are NaN": ({"max_upload_mb": math.nan}, "max_upload_mb is nan"),
    "megabytes that are text": ({"max_upload_mb": "9"}, "max_upload_mb is '9'"),
    "megabytes that are a switch": ({"max_upload_mb": True}, "max_upload_mb is True"),
    "megabytes for less than a sample": (
        {"max_upload_mb": 0.000019},
        r"max_upload_mb is 1\.9e-05, but .* one sample, of shape \(5,\), takes 2e-05 MB",
    ),
    "a negative seed": ({"seed": -1}, "seed is -1"),
    "no global phase": ({"kappa": 1.0}, "kappa is 1: there would be no global phase"),
    "a setting that is not there": ({"etta": 0.5}, "'etta'.*eta"),
    "a relay of a share": (
        {"client_weights": "relayed", "fraction_fit": 0.5},
        r"fraction_fit is 0\.5, but with client_weights 'relayed' one client trains in a round",
    ),
    "a relay of two": (
        {"client_weights": "relayed", "min_fit_clients": 2},
        "min_fit_clients is 2, but with client_weights 'relayed'",
    ),
    "parts that would never be averaged": (
        {"client_weights": "averaged", "share_every": 7},
        "share_every is 7, so that client parts are shared after 7 rounds, but rounds is 6: it mus",
    ),
    "gradients that would come too late": (
        {"client_weights": "relayed", "share_every": 6, "server_gradient": "selected"},
        "one that brings the server's last gradients, but rounds is 6: it must be at least 7",
    ),
    "one round with gradients for shared parts": (
        {"client_weights": "averaged", "server_gradient": "selected", "rounds": 1},
        "share_every is 1, so .* after 1 rounds and one .*: it must be at least 2",
    ),
    "settings twice": ({"settings": AdaSplitSettings()}, r"give settings or \['adam_learning_rate"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        adasplit(**options)


def test_a_server_part_that_does_not_take_the_activations_is_refused() -> None:
    split = tiny_split()
    split.server = nn.Linear(CUT + 1, CLASSES)
    with pytest.raises(SettingsError, match="server"):
        adasplit(split)


def test_the_least_megabytes_are_those_of_one_sample() -> None:
    shapes = cut_shapes(tiny_split(), (FEATURES,), CLASSES, 1024, 0.00002)
    assert shapes.activation == (CUT,) == (5,)
    assert (shapes.max_upload_mb, shapes.max_samples) == (0.00002, 1)


def test_settings_come_as_one_or_field_by_field() -> None:
    settings = AdaSplitSettings(eta=0.3)
    assert settings_of(settings, {}) is settings
    assert settings_of(None, {"eta": 0.3}) == settings
    assert settings_of(None, {}) == AdaSplitSettings()


@pytest.mark.parametrize(
    ("clients", "fraction", "count"),
    [(100, 0.29, 29), (10, 0.99, 9), (20, 0.25, 5), (7, 1.0, 7), (7, 1, 7), (3, 0.0, 0)],
)
def test_shares_are_exact_and_rounded_down(clients: int, fraction: float, count: int) -> None:
    assert share_of(clients, fraction) == count


@pytest.mark.parametrize(
    ("every", "fraction", "expected"),
    [(1, 1.0, [1, 2, 3, 4, 5]), (2, 0.1, [2, 4, 5]), (9, 1.0, [5]), (1, 0.0, [])],
)
def test_rounds_with_a_test(every: int, fraction: float, expected: list[int]) -> None:
    participation = Participation(5, 1.0, 1, 1, every, fraction)
    assert [n for n in range(1, 6) if participation.tests_in(n)] == expected
