"""Which of a client's states stay: few, and whichever a resumed run asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr.client_state import ClientState, StateFolder
from adasplit_flwr.kept_states import KeptStates
from strategies.client_rounds import StatePlan

CLIENT = 3


def rounds_in(root: Path) -> list[int]:
    """Return the rounds whose states are files; whatever else is there fails."""
    files = (root / "run" / f"client-{CLIENT}").glob("*")
    return sorted(int(path.stem.removeprefix("round-")) for path in files)


def state_after(server_round: int) -> ClientState:
    return ClientState({"a": np.ones(2)}, server_round, 0, "run", CLIENT)


@pytest.mark.parametrize(
    ("every", "trained", "kept"),
    [
        (0, range(1, 30), [28, 29]),
        (1, range(1, 9), [7, 8]),
        (5, range(1, 5), [3, 4]),
        (5, range(1, 6), [4, 5]),
        (5, range(1, 10), [5, 8, 9]),
        (5, range(1, 11), [5, 9, 10]),
        (5, range(1, 14), [5, 10, 12, 13]),
        (5, (2, 4, 8, 12, 13, 14), [4, 8, 13, 14]),
        (5, (3, 21), [3, 21]),
        (5, (3, 4, 21, 22), [4, 21, 22]),
        (5, (3, 4, 21, 22, 23), [4, 22, 23]),
        (3150, (1, 3149, 3151, 6299, 6301, 6302, 6303), [3149, 6299, 6302, 6303]),
    ],
)
def test_the_last_two_and_those_of_two_checkpoints_stay(
    tmp_path: Path, every: int, trained: Iterable[int], kept: list[int]
) -> None:
    folder = StateFolder(tmp_path, "run", checkpoint_every=every)
    for server_round in trained:
        folder.save(CLIENT, state_after(server_round))
    assert rounds_in(tmp_path) == kept


def test_the_many_files_of_an_earlier_version_go_with_the_next_save(tmp_path: Path) -> None:
    # It kept as many as there are rounds between two checkpoints, and one more.
    folder = tmp_path / "run" / f"client-{CLIENT}"
    folder.mkdir(parents=True)
    for number in range(10, 40):
        (folder / f"round-{number}.npz").touch()
    StateFolder(tmp_path, "run", checkpoint_every=30).save(CLIENT, state_after(40))
    assert rounds_in(tmp_path) == [30, 39, 40]


@dataclass
class Server:
    """What a server knows of one client: the round of its state, and the message that made it.

    A message's number tells the states of a round apart that a resumed run plays again.
    """

    root: Path
    every: int
    done: int = 0
    known: tuple[int, int] = (0, 0)
    saved: tuple[int, tuple[int, int]] = (0, (0, 0))
    messages: int = 0

    def train(self, outcome: str) -> None:
        """Play a round, in which the client may be asked, and its reply may be lost."""
        self.done += 1
        if outcome == "not asked":
            return
        self.messages += 1
        client = KeptStates(
            RecordDict(), self.root, partition_id=CLIENT, checkpoint_every=self.every
        )
        plan = StatePlan("run", self.done, self.known[0])
        client.keep(plan, {"a": np.ones(2)}, self.messages)
        if outcome == "trained":
            self.known = (self.done, self.messages)

    def write_checkpoint(self) -> None:
        """Note what a resumed run will go on from."""
        self.saved = (self.done, self.known)

    def resume(self) -> None:
        """Go back to the checkpoint, or to the start if there is none."""
        self.done, self.known = self.saved

    def found(self, server_round: int) -> tuple[int, int]:
        """Return the state that a client has for a round after it is started again."""
        if not server_round:
            return (0, 0)
        kept = KeptStates(RecordDict(), self.root, partition_id=CLIENT)
        return server_round, kept.find(StatePlan("run", 999, server_round)).iterations


@given(
    every=st.integers(0, 6),
    rounds=st.integers(1, 30),
    played=st.lists(
        st.tuples(
            st.sampled_from(["trained"] * 5 + ["not asked", "lost"]),
            st.sampled_from(["goes on"] * 8 + ["dies before the checkpoint", "dies after it"]),
        ),
        min_size=15,
        max_size=40,
    ),
)
@settings(deadline=None, max_examples=60)
def test_the_state_that_the_checkpoint_names_is_there_wherever_a_run_dies(
    tmp_path_factory: pytest.TempPathFactory,
    every: int,
    rounds: int,
    played: list[tuple[str, str]],
) -> None:
    server = Server(tmp_path_factory.mktemp("states"), every)
    for outcome, end in played:
        server.train(outcome)
        for named in (server.known, server.saved[1]):
            assert server.found(named[0]) == named
        assert len(rounds_in(server.root)) <= (4 if every else 2)
        is_last = server.done == rounds
        if every and (is_last or server.done % every == 0) and end != "dies before the checkpoint":
            server.write_checkpoint()
        if end != "goes on":
            server.resume()
        if server.done == rounds:
            break
