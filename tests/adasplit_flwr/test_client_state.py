"""What a client keeps: named arrays there and back, and files that are whole or not there."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from adasplit_flwr.client_state import ClientState, StateFolder
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.npz import save_npz

Arrays = dict[str, NDArray[Any]]
ARRAYS: Arrays = {
    "client.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "client.0.num_batches_tracked": np.array(7, np.int64),
    "head.weight": np.array([0.5, -2.5], np.float16),
    "adam/exp_avg/0": np.zeros((0, 3)),
    "run": np.array([True, False]),
}


def state_after(server_round: int, /, **changes: Any) -> ClientState:
    return replace(
        ClientState(ARRAYS, server_round, 21 * server_round, run="mixed-1.b", partition_id=3),
        **changes,
    )


def check_same(first: ClientState | None, second: ClientState) -> None:
    assert first is not None
    for name in ("server_round", "iterations", "run", "partition_id"):
        assert getattr(first, name) == getattr(second, name)
        assert type(getattr(first, name)) is type(getattr(second, name))
    assert list(first.arrays) == list(second.arrays)
    for name, array in second.arrays.items():
        assert first.arrays[name].dtype == array.dtype
        assert first.arrays[name].shape == array.shape
        assert first.arrays[name].tobytes() == array.tobytes()


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def states(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path, "mixed-1.b")


def test_the_flat_arrays_by_hand() -> None:
    named = state_after(12).to_arrays()
    assert list(named) == [
        "format",
        "partition-id",
        "server-round",
        "iterations",
        "run",
        *(f"array/{name}" for name in ARRAYS),
    ]
    values = [named[name].tolist() for name in list(named)[:4]]
    assert values == [1, 3, 12, 252]
    assert named["run"].tobytes() == b"mixed-1.b"
    assert all(np.shares_memory(named[f"array/{n}"], a) for n, a in ARRAYS.items() if a.size)


@given(
    arrays=st.dictionaries(
        st.from_regex(r"[a-z][a-z./_ 0-9]{0,8}[a-z0-9]", fullmatch=True),
        hnp.arrays(
            st.sampled_from(("float16", "float32", "float64", "int64", "uint8", "bool")),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        ),
        max_size=5,
    ),
    counters=st.tuples(*[st.integers(0, 2**63 - 1)] * 3),
    run=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}[A-Za-z0-9_-]", fullmatch=True),
)
@settings(deadline=None, max_examples=60)
def test_a_state_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    arrays: Arrays,
    counters: tuple[int, int, int],
    run: str,
) -> None:
    server_round, iterations, partition_id = counters
    state = ClientState(arrays, server_round % 10**18, iterations, run, partition_id)
    folder = StateFolder(tmp_path_factory.mktemp("states"), run)
    folder.save(partition_id, state)
    again = ClientState.from_arrays(state.to_arrays())
    loaded = folder.load(partition_id, state.server_round)
    for back in (again, loaded):
        check_same(back, state)
        assert back is not None
        assert (back.server_round, back.iterations) == (server_round % 10**18, iterations)
        assert list(back.arrays) == list(arrays)
    check_same(folder.latest(partition_id), state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server_round": -1}, "server_round is -1; it must be a whole number from 0"),
        ({"server_round": 2**63}, "server_round is 9223372036854775808"),
        ({"iterations": 1.0}, r"iterations is 1\.0"),
        ({"partition_id": True}, "partition_id is True"),
        ({"run": "a/b"}, "'a/b' cannot name a run"),
        ({"arrays": {"": np.ones(1)}}, "'' cannot name an array"),
        ({"arrays": {"a\0b": np.ones(1)}}, "cannot name an array"),
        ({"arrays": {"w": np.array([{}])}}, "array w has dtype object; expected numbers"),
        ({"arrays": {"w": np.array(["text"])}}, "array w has dtype <U4"),
    ],
)
def test_what_could_not_be_saved_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        state_after(1, **changes)


def put(name: str, value: object) -> Callable[[Arrays], object]:
    return lambda named: named.update({name: np.asarray(value)})


BROKEN: list[tuple[Callable[[Arrays], object], str]] = [
    (lambda named: named.clear(), r"has format, partition-id, .*, run, not \[\]"),
    (lambda named: named.pop("iterations"), "has format, .*not"),
    (put("more", 1), "not .*'more'"),
    (put("format", 2), "format 1 of a client's state expected, 2 came"),
    (put("iterations", -5), "iterations is -5"),
    (put("iterations", [1, 2]), r"iterations should be one int64, not int64 of shape \(2,\)"),
    (put("server-round", 1.0), "server-round should be one int64, not float64"),
    (put("partition-id", np.array(1, np.int32)), "partition-id should be one int64, not int32"),
    (put("run", "mixed"), "run should be text in uint8"),
    (put("run", np.array(5, np.uint8)), "run should be text in uint8"),
    (put("run", np.array([200], np.uint8)), "can't decode"),
    (put("run", np.array([46, 46], np.uint8)), r"'\.\.' cannot name a run"),
    (put("array/", 1.0), "'' cannot name an array"),
    (put("array/w", "text"), "array w has dtype <U4"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_broken_arrays_are_refused(change: Callable[[Arrays], object], message: str) -> None:
    named = state_after(12).to_arrays()
    change(named)
    with pytest.raises(DataError, match=message):
        ClientState.from_arrays(named)


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_file_of_broken_arrays_is_named(
    tmp_path: Path, states: StateFolder, change: Callable[[Arrays], object], message: str
) -> None:
    named = state_after(12).to_arrays()
    change(named)
    save_npz(tmp_path / "mixed-1.b" / "client-3" / "round-12.npz", named)
    with pytest.raises(DataError, match=rf"round-12\.npz holds no client state: .*{message}"):
        states.load(3, 12)


def test_the_last_two_rounds_of_each_client_are_kept(tmp_path: Path, states: StateFolder) -> None:
    for server_round in (1, 2, 5, 9, 10):
        states.save(3, state_after(server_round))
    states.save(4, state_after(1, partition_id=4))
    assert files_of(tmp_path) == [
        "mixed-1.b/client-3/round-10.npz",
        "mixed-1.b/client-3/round-9.npz",
        "mixed-1.b/client-4/round-1.npz",
    ]
    for server_round in (9, 10):
        check_same(states.load(3, server_round), state_after(server_round))
    assert states.load(3, 5) is None
    check_same(states.latest(3), state_after(10))
    check_same(states.latest(4), state_after(1, partition_id=4))


def test_nothing_is_there_before_the_first_round(tmp_path: Path, states: StateFolder) -> None:
    assert states.latest(3) is None
    assert states.load(3, 0) is None
    assert files_of(tmp_path) == []


def test_a_resumed_run_goes_over_what_it_left(tmp_path: Path, states: StateFolder) -> None:
    # The client has finished round 6; the server's checkpoint is of round 5.
    states.save(3, state_after(5))
    states.save(3, state_after(6, iterations=1))
    check_same(states.load(3, 5), state_after(5))
    states.save(3, state_after(6))
    check_same(states.load(3, 6), state_after(6))
    check_same(states.load(3, 5), state_after(5))
    # Back to a round 2 of another folder's copy: later rounds will come again.
    states.save(3, state_after(2))
    assert files_of(tmp_path) == ["mixed-1.b/client-3/round-2.npz"]
    check_same(states.latest(3), state_after(2))


def test_a_save_that_fails_keeps_what_was_there(
    tmp_path: Path, states: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.save(3, state_after(1))
    states.save(3, state_after(2))

    def write_half(file: Any, **arrays: Any) -> None:
        file.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", write_half)
    with pytest.raises(OSError, match="disk full"):
        states.save(3, state_after(3))
    check_same(states.latest(3), state_after(2))
    check_same(states.load(3, 1), state_after(1))
    assert len(files_of(tmp_path)) == 2


def test_files_of_other_names_are_left_alone(tmp_path: Path, states: StateFolder) -> None:
    folder = tmp_path / "mixed-1.b" / "client-3"
    folder.mkdir(parents=True)
    names = ["notes.txt", "round-07.npz", "round-x.npz", ".round-9.npz.partial", "round-9.npz.old"]
    for name in names:
        (folder / name).write_bytes(b"not ours")
    assert states.latest(3) is None
    for server_round in (1, 2, 3):
        states.save(3, state_after(server_round))
    check_same(states.latest(3), state_after(3))
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*names, "round-2.npz", "round-3.npz"]
    )


def npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", npy(np.ones(3))])
def test_a_damaged_file_is_named(tmp_path: Path, states: StateFolder, content: bytes) -> None:
    states.save(3, state_after(4))
    (tmp_path / "mixed-1.b" / "client-3" / "round-4.npz").write_bytes(content)
    damaged = r"the client state .*client-3.round-4\.npz cannot be read"
    with pytest.raises(DataError, match=damaged):
        states.load(3, 4)
    with pytest.raises(DataError, match=damaged):
        states.latest(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition_id": 5}, "client 5 of run mixed-1.b after round 4"),
        ({"run": "other"}, "client 3 of run other after round 4"),
        ({"server_round": 6}, "client 3 of run mixed-1.b after round 6"),
    ],
)
def test_a_foreign_file_is_named(
    tmp_path: Path, states: StateFolder, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "mixed-1.b" / "client-3" / "round-4.npz"
    save_npz(path, state_after(4, **changes).to_arrays())
    with pytest.raises(DataError, match=rf"round-4\.npz holds the state of {message}"):
        states.load(3, 4)


@pytest.mark.parametrize("changes", [{"partition_id": 5}, {"run": "other"}])
def test_a_state_is_not_saved_as_anothers(
    tmp_path: Path, states: StateFolder, changes: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match="was to be saved as that of client 3 of run mixed"):
        states.save(3, state_after(1, **changes))
    assert files_of(tmp_path) == []


@pytest.mark.parametrize(
    "run",
    ["", ".", "..", "a/b", "a\\b", "/tmp", ".hidden", "-x", "dot.", "a b", "é", "a\n", "x" * 101],
)
def test_a_run_name_that_is_no_file_name_is_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(SettingsError, match="cannot name a run: 1 to 100 letters"):
        StateFolder(tmp_path, run)


@pytest.mark.parametrize("run", ["a", "7", "mixed-non_iid.1", "A" * 100, "x-", "x_"])
def test_a_run_name_that_is_a_file_name_is_taken(tmp_path: Path, run: str) -> None:
    StateFolder(tmp_path, run).save(3, state_after(1, run=run))
    assert files_of(tmp_path) == [f"{run}/client-3/round-1.npz"]


def test_negative_numbers_are_refused(tmp_path: Path, states: StateFolder) -> None:
    with pytest.raises(SettingsError, match="checkpoint_every is -1; it must be a whole number fr"):
        StateFolder(tmp_path, "run", checkpoint_every=-1)
    with pytest.raises(SettingsError, match="partition_id is -1"):
        states.load(-1, 0)
    with pytest.raises(SettingsError, match="server_round is -1"):
        states.load(0, -1)
    with pytest.raises(SettingsError, match="partition_id is -1"):
        states.latest(-1)
