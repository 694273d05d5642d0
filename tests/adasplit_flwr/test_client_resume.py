"""Which state a client goes on from, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from adasplit_flwr.client_resume import find_state, resume
from adasplit_flwr.client_state import ClientState, StateFolder
from adasplit_flwr.exchange import Progress
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.plans import TestPlan
from tests.adasplit_flwr.small_clients import (
    PLAN,
    data_of,
    same_arrays,
    small_split,
    start_weights,
)
from zerofl_flwr.errors import ClientFailedError, DataError, PayloadError, SettingsError


def state_of(server_round: int, run: str = "a-run", partition_id: int = 3) -> ClientState:
    return ClientState({"x": np.array([server_round])}, server_round, 5, run, partition_id)


def found(held: list[ClientState], root: Path | None, server_round: int = 4) -> ClientState:
    return find_state(held, root, run="a-run", partition_id=3, server_round=server_round)


def test_the_state_at_hand_comes_before_the_saved_one_if_it_is_that_rounds(tmp_path: Path) -> None:
    held = state_of(4)
    assert found([held], None) is held
    assert found([state_of(5), held], None) is held
    folder = StateFolder(tmp_path, "a-run")
    for server_round in (3, 4):
        folder.save(3, state_of(server_round))
    assert found([held], tmp_path) is held
    assert found([], tmp_path).server_round == 4
    for other in (state_of(5), state_of(4, run="b-run"), state_of(4, partition_id=2)):
        assert found([other], tmp_path).server_round == 4
    assert found([held], tmp_path, 3).arrays["x"].tolist() == [3]


def test_a_lost_state_says_where_was_looked(tmp_path: Path) -> None:
    message = (
        r"client 3 of run a-run: the state of round 4 is lost: memory holds nothing, and no "
        r"folder of states was given"
    )
    with pytest.raises(ClientFailedError, match=message):
        found([], None)
    message = r"memory holds client 3 of run b-run after round 6, and .* does not hold it"
    with pytest.raises(ClientFailedError, match=message):
        found([state_of(6, run="b-run")], tmp_path)


def trainer_of(seed: int = 11) -> LocalTrainer:
    split = small_split(seed)
    return LocalTrainer(split.client, split.head, seed=7, partition_id=3)


def never() -> ClientState:
    raise AssertionError("a fresh client has no state")


LATER = dataclasses.replace(PLAN, server_round=5, state_round=4)


def trained_state() -> ClientState:
    trainer = trainer_of()
    inputs, labels = data_of(0)[:4]
    trainer.step(inputs, labels, PLAN, 0)
    arrays = trainer.state() | Progress(1).to_arrays()
    return ClientState(arrays, 4, 1, "a-run", 3)


@pytest.mark.parametrize("plan", [PLAN, TestPlan("a-run", 1, 0, False, 0, 0)])
def test_a_fresh_client_starts_from_the_weights_that_come(plan: TestPlan) -> None:
    trainer = trainer_of(99)
    assert resume(trainer, plan, start_weights(), never) == Progress()
    assert same_arrays(trainer.state(), trainer_of().state())
    with pytest.raises(PayloadError, match="server, field arrays: a client that has no state yet"):
        resume(trainer, plan, [], never)


def test_weights_that_come_replace_those_of_the_state() -> None:
    state = trained_state()
    without, with_weights = trainer_of(99), trainer_of(98)
    assert resume(without, LATER, [], lambda: state) == Progress(1)
    assert same_arrays(dict(without.state()) | Progress(1).to_arrays(), dict(state.arrays))
    resume(with_weights, LATER, start_weights(server_round=5), lambda: state)
    fresh = trainer_of().state()
    for name, array in with_weights.state().items():
        kept = name not in fresh or name.endswith("num_batches_tracked")
        assert np.array_equal(array, state.arrays[name] if kept else fresh[name]), name


def test_faults_are_found_before_the_state_is_looked_for() -> None:
    with pytest.raises(PayloadError, match="server, field round: round 5 expected, 1 came"):
        resume(trainer_of(), LATER, start_weights(), never)


def test_a_state_of_another_cut_or_without_progress_is_refused() -> None:
    state = trained_state()
    split = small_split()
    other = LocalTrainer(split.client[:1], split.head, seed=7, partition_id=3)  # type: ignore[index]
    message = r"the client's state holds .*client\.1\..*: it was made with another client part"
    with pytest.raises(SettingsError, match=message):
        resume(other, LATER, [], lambda: state)
    bare = dataclasses.replace(state, arrays=trainer_of().state())
    with pytest.raises(DataError, match="progress/next of the client's state"):
        resume(trainer_of(), LATER, [], lambda: bare)
