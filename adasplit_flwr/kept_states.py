"""What a client keeps from message to message, in Flower's context or as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from adasplit_flwr.client_resume import find_state
from adasplit_flwr.client_state import ClientState, StateFolder
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npy import read_npy

STATE_KEY, PREVIOUS_KEY = "kept-state", "kept-state-before"
"""Where a client's records are in ``context.state``: its last round's, and the one's before."""
ROUND_KEY = "round"
"""With a folder of states, all that the record :data:`STATE_KEY` holds: the number of the round."""


class Plan(Protocol):
    """What a message's plan has to say of the client's state."""

    @property
    def run(self) -> str:
        """Name of the run."""
        ...

    @property
    def server_round(self) -> int:
        """Number of the message's round."""
        ...

    @property
    def state_round(self) -> int:
        """Round whose state the client goes on from."""
        ...


class KeptStates:
    """The states of one client after its last rounds.

    Parameters
    ----------
    state : RecordDict
        ``context.state``, which lasts from message to message. What is kept there are the records
        :data:`STATE_KEY` and :data:`PREVIOUS_KEY`.
    folder : Path, optional
        Where states are saved instead, for a client that is started again and a run that is
        resumed; `state` then holds the number of the last round only.
    partition_id : int
        The client.
    checkpoint_every : int
        Rounds between two checkpoints of the server, 0 for none: the states that the last two name
        stay in the folder as well. See :class:`adasplit_flwr.client_state.StateFolder`.
    """

    def __init__(
        self,
        state: RecordDict,
        folder: Path | None,
        *,
        partition_id: int,
        checkpoint_every: int = 0,
    ) -> None:
        self.folder, self.checkpoint_every = folder, checkpoint_every
        self._state = state
        self._partition_id = partition_id

    def find(self, plan: Plan) -> ClientState:
        """Return the state that a plan names.

        Raises
        ------
        ClientFailedError
            If it is lost, or the saved one is damaged.
        DataError
            If what `state` holds is damaged.
        """
        return find_state(
            [*self._held(STATE_KEY), *self._held(PREVIOUS_KEY)],
            self.folder,
            run=plan.run,
            partition_id=self._partition_id,
            server_round=plan.state_round,
        )

    def keep(self, plan: Plan, arrays: Mapping[str, Array], iterations: int) -> None:
        """Keep the state after a plan's round, and those before it that may be asked for.

        Parameters
        ----------
        plan : Plan
            The message's.
        arrays : mapping of str to ndarray
            What is to be kept; bools and numbers of any shape.
        iterations : int
            Batches trained in the run so far.

        Raises
        ------
        SettingsError
            If it cannot be a client's state.
        OSError
            If it cannot be saved; nothing has changed then.
        """
        state = ClientState(arrays, plan.server_round, iterations, plan.run, self._partition_id)
        if self.folder is not None:
            saved = StateFolder(self.folder, plan.run, checkpoint_every=self.checkpoint_every)
            saved.save(self._partition_id, state, after=plan.state_round)
            self._state.pop(PREVIOUS_KEY, None)
            self._state[STATE_KEY] = ConfigRecord({ROUND_KEY: plan.server_round})
            return
        # The server knows of the round that this one went on from, and may not hear of this one.
        if any(held.server_round == plan.state_round for held in self._held(STATE_KEY)):
            self._state[PREVIOUS_KEY] = self._state[STATE_KEY]
        self._state[STATE_KEY] = ArrayRecord(
            {name: FlowerArray(array) for name, array in state.to_arrays().items()}
        )

    def _held(self, key: str) -> list[ClientState]:
        record = self._state.get(key)
        if not isinstance(record, ArrayRecord):
            return []
        return [ClientState.from_arrays({name: read_npy(a.data) for name, a in record.items()})]
