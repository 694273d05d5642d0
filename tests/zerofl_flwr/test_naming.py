"""Hints at the nearest known name."""

from __future__ import annotations

import pytest

from zerofl_flwr.naming import did_you_mean, looks_like, unknown_name


def test_the_nearest_name_is_suggested() -> None:
    message = unknown_name("partitioner", "dirichelt", ["iid", "dirichlet"])
    assert message == (
        "unknown partitioner 'dirichelt'; did you mean 'dirichlet'? (known: dirichlet, iid)"
    )


def test_the_nearest_is_named_however_far_it_is() -> None:
    message = unknown_name("column", "zzz", ["label"])
    assert message == "unknown column 'zzz'; did you mean 'label'? (known: label)"


def test_nothing_is_suggested_when_nothing_is_known() -> None:
    assert unknown_name("column", "zzz", []) == "unknown column 'zzz' (known: none)"
    assert did_you_mean("zzz", []) == ""


@pytest.mark.parametrize(("name", "nearest"), [("fc1", "fc11"), (12, "2"), (None, "noNe")])
def test_the_hint_stands_alone_and_takes_what_is_no_text(name: object, nearest: str) -> None:
    known = iter(["noNe", "fc11", "2"])
    assert did_you_mean(name, known) == f"; did you mean {nearest!r}?"


@pytest.mark.parametrize(
    ("name", "near"), [("digit", True), ("digits", True), ("mnist", False), ("cifar10", False)]
)
def test_what_may_be_a_misspelling(name: str, near: bool) -> None:
    assert looks_like(name, iter(["digits", "zzz"])) == near
