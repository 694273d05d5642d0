"""What a baseline's client keeps from message to message, in memory or as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from adasplit_flwr.client_resume import find_state
from adasplit_flwr.client_state import ClientState, StateFolder
from strategies.client_rounds import StatePlan
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npy import read_npy

STATE_KEY, PREVIOUS_KEY = "baseline-client", "baseline-client-before"
"""Where a client's records are in ``context.state``: its last round's, and the one's before."""


class KeptStates:
    """The states of one client after its last rounds.

    Parameters
    ----------
    state : RecordDict
        ``context.state``, which lasts from message to message.
    folder : Path, optional
        Where states are saved instead, for a client that is started again and a run that is
        resumed; `state` then holds the number of the last round only.
    partition_id : int
        The client.
    keep : int
        How many states are saved: one more than the rounds between two checkpoints of the server.
    """

    def __init__(
        self, state: RecordDict, folder: Path | None, *, partition_id: int, keep: int = 2
    ) -> None:
        self._state = state
        self._folder = folder
        self._partition_id = partition_id
        self._keep = keep

    def find(self, plan: StatePlan) -> ClientState:
        """Return the state that a plan names.

        Raises
        ------
        ClientFailedError
            If it is lost.
        DataError
            If it is damaged.
        """
        return find_state(
            [*self._held(STATE_KEY), *self._held(PREVIOUS_KEY)],
            self._folder,
            run=plan.run,
            partition_id=self._partition_id,
            server_round=plan.state_round,
        )

    def keep(self, plan: StatePlan, arrays: Mapping[str, Array], steps: int) -> None:
        """Keep the state after a plan's round, and the one before it.

        Parameters
        ----------
        plan : StatePlan
            The message's.
        arrays : mapping of str to ndarray
            What is to be kept.
        steps : int
            Batches trained in the run so far.
        """
        state = ClientState(arrays, plan.server_round, steps, plan.run, self._partition_id)
        if self._folder is not None:
            saved = StateFolder(self._folder, plan.run, keep=self._keep)
            saved.save(self._partition_id, state, after=plan.state_round)
            self._state.pop(PREVIOUS_KEY, None)
            self._state[STATE_KEY] = ConfigRecord({"round": plan.server_round})
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


def plan_in(config: dict[str, Any], strategy: str) -> StatePlan:
    """Read the plan of a message that a client with a state cannot do without.

    Raises
    ------
    SettingsError
        If there is none, or a bad one.
    """
    plan = StatePlan.from_config(config)
    if plan is None:
        raise SettingsError(
            f"the message does not say which state to go on from: this client needs the strategy "
            f"{strategy} at the server"
        )
    return plan
