"""What of AdaSplit's client lasts from message to message, and over a restart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from adasplit_flwr.client_state import ClientState, StateFolder
from adasplit_flwr.kept_states import PREVIOUS_KEY, ROUND_KEY, STATE_KEY
from tests.adasplit_flwr.small_clients import (
    NEXT,
    PLAN,
    bits,
    client_of,
    fit,
    play,
    same_arrays,
    start_weights,
    state_in,
)
from zerofl_flwr.errors import ClientFailedError
from zerofl_flwr.payload import read_npy


def saved_in(folder: Path) -> ClientState:
    state = StateFolder(folder, "a-run").latest(3)
    assert state is not None
    return state


def test_the_state_is_a_record_of_plain_arrays_a_round() -> None:
    state = RecordDict()
    play(state)
    assert set(state) == {PREVIOUS_KEY, STATE_KEY}
    record = state[STATE_KEY]
    assert isinstance(record, ArrayRecord)
    kinds = {read_npy(array.data).dtype.kind for array in record.values()}
    assert kinds == {"f", "i", "u"}
    again = RecordDict({STATE_KEY: ArrayRecord({k: Array(v.numpy()) for k, v in record.items()})})
    replies = [fit(client_of(3, s), NEXT)[0] for s in (state, again)]
    assert same_arrays(*replies)


def test_the_state_lasts_in_the_record_alone() -> None:
    state = RecordDict()
    play(state)
    # Three rounds by one object on one model.
    other = RecordDict()
    at_once = client_of(3, other)
    fit(at_once, PLAN, start_weights())
    fit(at_once, dataclasses.replace(PLAN, server_round=2, state_round=1))
    assert bits(state_in(state).arrays) == bits(state_in(other).arrays)
    assert same_arrays(fit(client_of(3, state), NEXT)[0], fit(at_once, NEXT)[0])


def test_the_state_lasts_in_the_folder_alone(tmp_path: Path) -> None:
    kept = RecordDict()
    play(kept)
    play(RecordDict(), state_dir=tmp_path)
    expected = fit(client_of(3, kept), NEXT)[0]
    restarted = RecordDict()
    reply = fit(client_of(3, restarted, state_dir=tmp_path), NEXT)[0]
    assert same_arrays(reply, expected)
    assert saved_in(tmp_path).server_round == 3


def test_with_a_folder_the_record_holds_the_number_of_the_round_alone(tmp_path: Path) -> None:
    state = RecordDict()
    play(state)  # without a folder at first
    assert set(state) == {PREVIOUS_KEY, STATE_KEY}
    for plan in (NEXT, dataclasses.replace(NEXT, server_round=4, state_round=3)):
        fit(client_of(3, state, state_dir=tmp_path), plan)
        assert dict(state) == {STATE_KEY: ConfigRecord({ROUND_KEY: plan.server_round})}
    # Without the folder again, that is not enough to go on.
    with pytest.raises(ClientFailedError, match="state of round 4 is lost: memory holds nothing"):
        fit(client_of(3, state), dataclasses.replace(NEXT, server_round=5, state_round=4))


def test_a_run_resumed_from_the_round_before_finds_its_state(tmp_path: Path) -> None:
    state = RecordDict()
    second = play(state, state_dir=tmp_path)[0]
    third = fit(client_of(3, state, state_dir=tmp_path), NEXT)[0]
    fourth_plan = dataclasses.replace(PLAN, server_round=4, state_round=3)
    fourth = fit(client_of(3, state, state_dir=tmp_path), fourth_plan)[0]
    # The server stopped before it saved round 4, and before it saved round 3 it did not.
    assert same_arrays(fit(client_of(3, state, state_dir=tmp_path), fourth_plan)[0], fourth)
    assert same_arrays(fit(client_of(3, RecordDict(), state_dir=tmp_path), fourth_plan)[0], fourth)
    with pytest.raises(ClientFailedError, match="the state of round 2 is lost: memory holds"):
        fit(client_of(3, state, state_dir=tmp_path), NEXT)
    # From the start again: what is later goes.
    assert same_arrays(play(RecordDict(), state_dir=tmp_path)[0], second)
    assert same_arrays(fit(client_of(3, RecordDict(), state_dir=tmp_path), NEXT)[0], third)


def test_a_server_that_lost_replies_goes_on_from_the_round_that_it_knows() -> None:
    state = RecordDict()
    play(state)
    for server_round in (3, 4, 5):  # the replies of rounds 3 and 4 never arrived
        plan = dataclasses.replace(PLAN, server_round=server_round, state_round=2)
        undisturbed = RecordDict()
        play(undisturbed)
        expected = fit(client_of(3, undisturbed), plan)[0]
        assert same_arrays(fit(client_of(3, state), plan)[0], expected)
        assert state_in(state).server_round == server_round


def test_so_it_does_after_a_restart(tmp_path: Path) -> None:
    play(RecordDict(), state_dir=tmp_path)
    for server_round in (3, 4, 5):
        plan = dataclasses.replace(PLAN, server_round=server_round, state_round=2)
        reply = fit(client_of(3, RecordDict(), state_dir=tmp_path), plan)[0]
        undisturbed = RecordDict()
        play(undisturbed)
        assert same_arrays(reply, fit(client_of(3, undisturbed), plan)[0])
        rounds = sorted(path.stem for path in tmp_path.rglob("*.npz"))
        assert rounds == ["round-2", f"round-{server_round}"]


def test_a_lost_state_is_refused(tmp_path: Path) -> None:
    message = "client 3 of run a-run: the state of round 2 is lost: memory holds nothing, and no fo"
    with pytest.raises(ClientFailedError, match=message):
        fit(client_of(3, RecordDict()), NEXT)
    state = RecordDict()
    play(state, state_dir=tmp_path)
    other_run = dataclasses.replace(NEXT, run="b-run")
    with pytest.raises(
        ClientFailedError, match=r"of run b-run: .*memory holds nothing, and .* doe"
    ):
        fit(client_of(3, state, state_dir=tmp_path), other_run)
    state = RecordDict()
    play(state)
    with pytest.raises(ClientFailedError, match=r"of run b-run: .*client 3 of run a-run after ro"):
        fit(client_of(3, state, state_dir=tmp_path), other_run)
    with pytest.raises(ClientFailedError, match=r"client 4 of run a-run: the state of round 2 is"):
        fit(client_of(4, state, state_dir=tmp_path), NEXT)


def test_a_failed_message_leaves_the_state_alone(tmp_path: Path) -> None:
    state = RecordDict()
    play(state, state_dir=tmp_path)
    before = bits(dict(saved_in(tmp_path).to_arrays()))
    files = sorted(path.name for path in tmp_path.rglob("*.npz"))
    diverging = dataclasses.replace(NEXT, learning_rate=1e30, iterations=4)
    message = r"diverged at learning rate 1e\+30, iteration [56]"
    with pytest.raises(ClientFailedError, match=message):
        fit(client_of(3, state, state_dir=tmp_path), diverging)
    assert bits(dict(saved_in(tmp_path).to_arrays())) == before
    assert dict(state) == {STATE_KEY: ConfigRecord({ROUND_KEY: 2})}
    assert sorted(path.name for path in tmp_path.rglob("*.npz")) == files


def test_a_state_that_cannot_be_saved_is_not_kept_in_memory_either(tmp_path: Path) -> None:
    state = RecordDict()
    play(state)
    no_folder = tmp_path / "file"
    no_folder.touch()
    with pytest.raises(OSError, match="file"):
        fit(client_of(3, state, state_dir=no_folder), NEXT)
    assert state_in(state).server_round == 2
