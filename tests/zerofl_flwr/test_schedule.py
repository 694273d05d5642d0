"""Schedules of sparsity and mask ratio."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.schedule import SHAPES, Schedule


def test_constant_gives_final_in_every_round() -> None:
    schedule = Schedule(0.95)
    assert [schedule.value(t) for t in (0, 1, 7, 1000)] == [0.95] * 4


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("linear", [0.0, 0.2, 0.4, 0.6, 0.8, 0.8]),
        # 0.8 * (1 - cos(pi t / 4)) / 2 by hand: the cosine of 45 degrees is 0.70710678.
        ("cosine", [0.0, 0.117157, 0.4, 0.682843, 0.8, 0.8]),
        # 0.8 * (1 - (1 - t / 4)^3): 27/64, 1/8 and 1/64 are left.
        ("cubic", [0.0, 0.4625, 0.7, 0.7875, 0.8, 0.8]),
    ],
)
def test_literal_values(shape: str, expected: list[float]) -> None:
    schedule = Schedule(0.8, start=0.0, rounds=4, shape=shape)
    assert [schedule.value(t) for t in range(6)] == expected


def test_cubic_ramp_of_the_reference_run() -> None:
    ramp = Schedule(0.95, start=0.3, rounds=30, shape="cubic")
    for t in range(1, 31):
        assert ramp.value(t) == pytest.approx(0.95 - 0.65 * (1 - t / 30) ** 3, abs=5e-7)
    assert ramp.value(31) == 0.95


def test_a_schedule_may_fall() -> None:
    falling = Schedule(0.0, start=0.2, rounds=2, shape="linear")
    assert [falling.value(t) for t in (0, 1, 2)] == [0.2, 0.1, 0.0]


@given(
    final=st.floats(0, 1),
    start=st.floats(0, 1),
    rounds=st.integers(1, 500),
    shape=st.sampled_from(SHAPES[1:]),
    server_round=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=150)
def test_values_lie_between_start_and_final(
    final: float, start: float, rounds: int, shape: str, server_round: int
) -> None:
    schedule = Schedule(final, start, rounds, shape)
    value = schedule.value(server_round)
    assert min(start, final) - 5e-7 <= value <= max(start, final) + 5e-7
    assert 0 <= value <= 1
    following = schedule.value(server_round + 1)
    assert math.fabs(final - following) <= math.fabs(final - value) + 1e-6
    assert server_round < rounds or value == final


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"final": 1.01}, r"final of a schedule must lie between 0 and 1, got 1\.01"),
        ({"final": -0.1}, "final"),
        ({"final": math.nan}, "final"),
        ({"final": True}, "final of a schedule must be a number from 0 to 1, got True"),
        ({"final": "0.5"}, "final of a schedule must be a number from 0 to 1, got '0.5'"),
        ({"final": 0.5, "start": 0.1}, "constant schedule takes neither start"),
        ({"final": 0.5, "rounds": 3}, "constant schedule takes neither"),
        ({"final": 0.5, "shape": "linear"}, "linear schedule needs start and rounds >= 1"),
        ({"final": 0.5, "shape": "cubic", "start": 0.1}, "cubic schedule needs start"),
        ({"final": 0.5, "shape": "cosine", "rounds": 3}, "cosine schedule needs start"),
        (
            {"final": 0.5, "shape": "linear", "start": 2.0, "rounds": 3},
            "start of a schedule must lie",
        ),
        ({"final": 0.5, "shape": "linear", "start": 0.0, "rounds": -1}, "rounds"),
        ({"final": 0.5, "shape": "linear", "start": 0.0, "rounds": 2.0}, "rounds"),
        ({"final": 0.5, "shape": "linear", "start": 0.0, "rounds": True}, "rounds"),
        ({"final": 0.5, "shape": "cubik"}, "unknown schedule shape 'cubik'; did you mean 'cubic'"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Schedule(**arguments)


def test_a_negative_round_is_refused() -> None:
    with pytest.raises(SettingsError, match="count from 1, got -1"):
        Schedule(0.5).value(-1)
