"""Which state a client goes on from, whatever was lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategies.client_rounds import ClientRounds, StatePlan
from strategies.member import MemberFailedError
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array


def test_a_plan_travels_in_a_config() -> None:
    plan = StatePlan("a-run", 7, 5)
    config = plan.to_config()
    assert config == {
        "baseline-run": "a-run",
        "baseline-server-round": 7,
        "baseline-state-round": 5,
    }
    assert StatePlan.from_config({**config, "learning-rate": 0.1}) == plan
    assert StatePlan.from_config({"learning-rate": 0.1}) is None
    with pytest.raises(SettingsError, match=r"the round's config lacks baseline-run"):
        StatePlan.from_config({"baseline-server-round": 7, "baseline-state-round": 5})


def test_only_a_reply_that_passed_moves_a_client_on() -> None:
    rounds = ClientRounds("run")
    rounds.begin()
    assert rounds.ask(3, 1) == StatePlan("run", 1, 0)
    assert rounds.ask(4, 1) == StatePlan("run", 1, 0)
    rounds.trained(3, 1)
    rounds.begin()
    assert not rounds.was_asked(3)
    assert rounds.ask(3, 2) == StatePlan("run", 2, 1)
    assert rounds.plan(4, 2) == StatePlan("run", 2, 0)
    assert (rounds.was_asked(3), rounds.was_asked(4)) == (True, False)
    assert (3 in rounds, 4 in rounds, len(rounds)) == (True, False, 1)


def test_a_lost_state_is_known_by_its_words() -> None:
    rounds = ClientRounds("run")
    for client in (1, 2):
        rounds.trained(client, 4)
    rounds.begin()
    for client in (1, 2, 3):
        rounds.ask(client, 6)
    lost = "client {} of run run: the state of round 4 is lost: memory holds nothing"
    failures: list[object] = [
        MemberFailedError(1, lost.format(1)),
        MemberFailedError(2, "out of memory"),
        MemberFailedError(3, "client 3 of run run: the state of round 0 is lost"),
        RuntimeError(lost.format(2)),  # nameless
    ]
    assert rounds.lost_among(failures) == [1]
    assert rounds.lost_among([MemberFailedError(2, lost.format(1))]) == []
    rounds.forget(1)
    assert rounds.plan(1, 7).state_round == 0
    assert rounds.plan(2, 7).state_round == 4
    rounds.forget_all()
    assert len(rounds) == 0


def test_the_state_comes_back() -> None:
    rounds = ClientRounds("run")
    for client, number in ((9, 3), (2, 12)):
        rounds.trained(client, number)
    state = rounds.state_arrays()
    assert {name: array.tolist() for name, array in state.items()} == {
        "ids": [2, 9],
        "state-rounds": [12, 3],
    }
    other = ClientRounds("run")
    other.load_state_arrays(state)
    assert other.plan(9, 13) == StatePlan("run", 13, 3)
    assert other.plan(2, 13) == StatePlan("run", 13, 12)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"ids": np.array([1])},
        {"ids": np.array([1]), "state-rounds": np.array([1, 2])},
        {"ids": np.array([1]), "state-rounds": np.array([2]), "gradient/1/0": np.array([0.5])},
    ],
)
def test_another_state_is_refused_and_changes_nothing(state: dict[str, Array]) -> None:
    rounds = ClientRounds("run")
    rounds.trained(5, 2)
    with pytest.raises(SettingsError, match="this is no state of a run's clients"):
        rounds.load_state_arrays(state)
    assert rounds.plan(5, 3).state_round == 2


@pytest.mark.parametrize("run", ["", "a/b", "..", "x" * 101])
def test_a_run_has_the_name_of_a_folder(run: Any) -> None:
    with pytest.raises(SettingsError, match="cannot name a run"):
        ClientRounds(run)
