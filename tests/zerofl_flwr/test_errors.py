"""The hierarchy of errors, and what a payload's error says."""

from __future__ import annotations

import copy

import pytest

from zerofl_flwr.errors import (
    ClientFailedError,
    DataError,
    LeanFlwrError,
    PayloadError,
    RoundFailedError,
    SelectionError,
    SettingsError,
)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (SettingsError, ValueError),
        (SelectionError, ValueError),
        (DataError, ValueError),
        (PayloadError, ValueError),
        (RoundFailedError, RuntimeError),
        (ClientFailedError, RuntimeError),
    ],
)
def test_one_base_class_and_the_nearest_builtin(
    error: type[LeanFlwrError], builtin: type[Exception]
) -> None:
    assert issubclass(error, LeanFlwrError)
    assert issubclass(error, builtin)
    assert str(error("what went wrong")) == "what went wrong"


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ({}, "too long"),
        ({"sender": "client 3"}, "client 3: too long"),
        ({"layer": "fc.weight"}, "layer fc.weight: too long"),
        ({"field": "indices"}, "field indices: too long"),
        (
            {"sender": "client 3", "layer": "fc.weight", "field": "indices"},
            "client 3, layer fc.weight, field indices: too long",
        ),
    ],
)
def test_a_payload_error_names_the_places_it_knows(places: dict[str, str], text: str) -> None:
    assert str(PayloadError("too long", **places)) == text


def test_a_payload_error_survives_being_rebuilt() -> None:
    error = PayloadError("too long", sender="client 3", layer="fc.weight", field="indices")
    again = copy.copy(error)  # by the same way as it crosses to another process
    assert again is not error
    assert str(again) == str(error)
    assert (again.reason, again.sender, again.layer, again.field) == (
        "too long",
        "client 3",
        "fc.weight",
        "indices",
    )
