"""What lasts from message to message, in memory and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from adasplit_flwr.kept_states import PREVIOUS_KEY, ROUND_KEY, STATE_KEY, KeptStates
from strategies.client_rounds import StatePlan
from zerofl_flwr.errors import ClientFailedError
from zerofl_flwr.model_arrays import Array


def named(value: float) -> dict[str, Array]:
    return {"a": np.full((2, 3), value, np.float32), "b": np.array(value)}


def value_of(kept: KeptStates, state_round: int, run: str = "run") -> tuple[float, int]:
    state = kept.find(StatePlan(run, 99, state_round))
    assert state.arrays["a"].shape == (2, 3)
    assert state.arrays["a"].dtype == np.float32
    return float(state.arrays["b"]), state.iterations


def test_memory_has_the_last_round_and_the_one_it_went_on_from() -> None:
    state = RecordDict()
    kept = KeptStates(state, None, partition_id=2)
    kept.keep(StatePlan("run", 1, 0), named(1.0), 10)
    kept.keep(StatePlan("run", 4, 1), named(4.0), 20)
    assert (value_of(kept, 1), value_of(kept, 4)) == ((1.0, 10), (4.0, 20))
    # The reply to round 4 was lost; round 5 went on from 1 once more.
    kept.keep(StatePlan("run", 5, 1), named(5.0), 25)
    assert (value_of(kept, 1), value_of(kept, 5)) == ((1.0, 10), (5.0, 25))
    with pytest.raises(ClientFailedError, match="client 2 of run run: the state of round 4 is lo"):
        kept.find(StatePlan("run", 6, 4))
    with pytest.raises(ClientFailedError, match="client 2 of run other: the state of round 5 is"):
        kept.find(StatePlan("other", 6, 5))
    assert set(state) == {STATE_KEY, PREVIOUS_KEY}
    # The same state, as another object of the same client finds it in the next message.
    assert value_of(KeptStates(state, None, partition_id=2), 5) == (5.0, 25)


def test_a_folder_has_those_that_may_be_asked_for(tmp_path: Path) -> None:
    state = RecordDict()
    kept = KeptStates(state, tmp_path, partition_id=2, checkpoint_every=3)
    for number in range(1, 6):
        kept.keep(StatePlan("run", number, number - 1), named(number), number)
    files = sorted((tmp_path / "run" / "client-2").iterdir())
    assert [path.name for path in files] == ["round-3.npz", "round-4.npz", "round-5.npz"]
    assert value_of(KeptStates(RecordDict(), tmp_path, partition_id=2), 4) == (4.0, 4)
    record = state[STATE_KEY]
    assert isinstance(record, ConfigRecord)
    assert dict(record) == {ROUND_KEY: 5}
    assert PREVIOUS_KEY not in state
    with pytest.raises(ClientFailedError, match="does not hold it"):
        kept.find(StatePlan("run", 6, 2))
