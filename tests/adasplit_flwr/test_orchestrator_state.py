"""What the orchestrator saves and loads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adasplit_flwr.orchestrator import Orchestrator
from tests.adasplit_flwr.played_picks import play
from zerofl_flwr.errors import DataError

State = dict[str, NDArray[Any]]


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_loaded_state_continues_as_the_old_one(stop: int) -> None:
    def loss_of(client: int) -> float:
        return 1 / (1 + client)

    whole = play(Orchestrator(0.7, seed=5), loss_of, range(6), 2, 20)
    first, second = Orchestrator(0.7, seed=5), Orchestrator(0.7, seed=5)
    before = play(first, loss_of, range(6), 2, stop)
    state = first.state_arrays()
    second.load_state_arrays(state)
    assert before + play(second, loss_of, range(6), 2, 20 - stop) == whole
    # The state is a copy on both ways.
    assert int(state["entries"]) == 2 + stop
    state["loss-sums"][:] = 0
    assert before + play(first, loss_of, range(6), 2, 20 - stop) == whole


def put(name: str, value: object) -> Callable[[State], object]:
    return lambda state: state.update({name: np.asarray(value)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("ids"), "has .* came"),
        (put("mask", 1), r"has .*'mask'.* came"),
        (put("entries", [5]), r"entries should be int64 of shape \(\), int64 of shape \(1,\)"),
        (put("entries", 5.0), "entries should be int64"),
        (put("entries", 1), "entries are 1; they start at 2"),
        (put("ids", [0, 1]), r"loss-sums should be float64 of shape \(2,\)"),
        (put("ids", [[0, 1, 2]]), r"ids should be int64 of shape \(3,\)"),
        (put("ids", [0, 2, 1]), "ids must ascend"),
        (put("ids", [0, 1, 1]), "ids must ascend"),
        (put("ids", [-1, 1, 2]), "ids must be finite and not negative"),
        (put("loss-sums", [1.0, 2.0]), r"loss-sums should be float64 of shape \(3,\)"),
        (put("loss-sums", np.ones(3, np.float32)), "loss-sums should be float64"),
        (put("loss-sums", [1.0, math.nan, 1.0]), "loss-sums must be finite"),
        (put("pick-sums", [1.0, math.inf, 1.0]), "pick-sums must be finite"),
        (put("pick-sums", [1.0, -1.0, 1.0]), "pick-sums must be finite and not negative"),
        (put("pick-sums", [1.0, 0.5, 1.0]), "pick-sums must be from 1"),
        (put("waits", [1, -1, 1]), "waits must be finite and not negative"),
        (put("waits", [1.0, 1.0, 1.0]), r"waits should be int64 of shape \(3,\)"),
        (put("last-losses", np.ones((2, 3))), r"last-losses should be float64 of shape \(3, 2\)"),
        (put("last-losses", np.full((3, 2), math.nan)), "last-losses must be finite"),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(
    change: Callable[[State], object], message: str
) -> None:
    orchestrator = Orchestrator()
    play(orchestrator, lambda client: 1.0, [0, 1, 2], 2, 3)
    state = orchestrator.state_arrays()
    change(state)
    other = Orchestrator()
    with pytest.raises(DataError, match=message):
        other.load_state_arrays(state)
    assert other.state_arrays()["ids"].tolist() == []
    assert other.exchanges == 0
