"""The store of masks against plain dicts, in any order of use, commits and crashes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.adasplit_flwr.stored_masks import after, content, store, train
from zerofl_flwr.model_arrays import Array


class StoreAgainstDict(RuleBasedStateMachine):
    """Any order of training, looking, committing and crashing, against plain dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.records = 1
        self.store = store(Path(self.folder.name), records=self.records)
        self.now: dict[int, int] = {}  # the steps of each client
        empty = self.store.commit()
        # Tables that may be the one on disk, with what they must bring back.
        self.tables: list[tuple[dict[str, Array], dict[int, int]]] = [(empty, {})]

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(clients=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def train(self, clients: list[int]) -> None:
        for client in clients:
            train(self.store, client)
            self.now[client] = self.now.get(client, 0) + 1

    @rule(client=st.integers(0, 4), whole=st.booleans())
    def look(self, client: int, whole: bool) -> None:
        expected = after(client, self.now.get(client, 0))
        if whole:
            assert content(self.store, client) == expected
        else:
            assert self.store.mask(client).tolist() == expected[0][0]

    @rule()
    def commit(self) -> None:
        self.tables.append((self.store.commit(), dict(self.now)))

    @rule()
    def commit_and_say_so(self) -> None:
        self.commit()
        self.store.committed()
        del self.tables[:-1]

    @precondition(lambda self: len(self.tables) > 1)
    @rule()
    def say_so_late(self) -> None:
        self.store.committed()
        del self.tables[:-1]

    @rule(data=st.data(), records=st.integers(1, 3))
    def crash(self, data: st.DataObject, records: int) -> None:
        table, self.now = data.draw(st.sampled_from(self.tables))
        self.now = dict(self.now)
        self.tables = [(table, dict(self.now))]
        self.store = store(Path(self.folder.name), records=records)
        self.store.restore(table)

    @invariant()
    def knows_its_clients(self) -> None:
        assert self.store.clients() == sorted(self.now)


StoreAgainstDict.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
TestStoreAgainstDict = StoreAgainstDict.TestCase
