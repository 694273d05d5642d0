"""For clients that keep something from round to round: which state each is to go on from.

A client's state round moves only when a reply of it passed its checks. So where a reply is lost on
its way or refused, the client is asked to go on from the state before that round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adasplit_flwr.client_resume import lost_state
from adasplit_flwr.client_state import check_run_name
from adasplit_flwr.plans import FRESH
from strategies.member import MemberFailedError
from strategies.state import State
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.plan_config import Scalar, from_config, to_config

_PREFIX = "baseline-"
_IDS, _ROUNDS = "ids", "state-rounds"


@dataclass(frozen=True)
class StatePlan:
    """What a client with a state of its own must know of a message; travels in its config.

    Parameters
    ----------
    run : str
        Name of the run, which keys the client's saved state.
    server_round : int
        Number of the round.
    state_round : int
        Round that this client trained in last, whose state it goes on from; 0: none, it begins.
    """

    run: str
    server_round: int
    state_round: int

    def to_config(self) -> dict[str, Scalar]:
        """Return the plan as Flower config entries, keys ``baseline-...``."""
        return to_config(self, _PREFIX)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> StatePlan | None:
        """Read a plan back; None when the config holds none.

        Raises
        ------
        SettingsError
            If only some of the entries are there, or one has a wrong type.
        """
        return from_config(cls, config, _PREFIX)


class ClientRounds:
    """Which round each client's state is of.

    Parameters
    ----------
    run : str
        Name of the run.

    Raises
    ------
    SettingsError
        If it could not be a folder's name.
    """

    def __init__(self, run: str) -> None:
        check_run_name(run)
        self.run = run
        self._rounds: dict[int, int] = {}
        self._plans: dict[int, StatePlan] = {}

    def __len__(self) -> int:
        """Return how many clients have a state."""
        return len(self._rounds)

    def __contains__(self, client: int) -> bool:
        """Say whether a client has one."""
        return client in self._rounds

    def begin(self) -> None:
        """Forget whom the last round asked."""
        self._plans = {}

    def ask(self, client: int, server_round: int) -> StatePlan:
        """Make a client's plan, and note that it is asked."""
        plan = self._plans[client] = self.plan(client, server_round)
        return plan

    def plan(self, client: int, server_round: int) -> StatePlan:
        """Make a client's plan."""
        return StatePlan(self.run, server_round, self._rounds.get(client, FRESH))

    def was_asked(self, client: int) -> bool:
        """Say whether a client is asked in the present round."""
        return client in self._plans

    def trained(self, client: int, server_round: int) -> None:
        """Note that a client's reply to a round has passed."""
        self._rounds[client] = server_round

    def lost_among(self, failures: Sequence[object]) -> list[int]:
        """Return the clients which say that they have lost the state that they were to go on from.

        Parameters
        ----------
        failures : sequence
            As Flower hands them over; only those that name their client tell.
        """
        lost = []
        for failure in failures:
            if not isinstance(failure, MemberFailedError):
                continue
            client = failure.partition_id
            plan = self._plans.get(client)
            if plan is None or plan.state_round == FRESH:
                continue
            if lost_state(client, plan.run, plan.state_round) in failure.reason:
                lost.append(client)
        return lost

    def forget(self, client: int) -> None:
        """Let a client begin again."""
        self._rounds.pop(client, None)

    def forget_all(self) -> None:
        """Let all begin again."""
        self._rounds = {}

    def state_arrays(self) -> State:
        """Return everything as int64 columns."""
        ids = sorted(self._rounds)
        rounds = [self._rounds[client] for client in ids]
        return {_IDS: np.array(ids, np.int64), _ROUNDS: np.array(rounds, np.int64)}

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is something else; then nothing has changed.
        """
        try:
            pairs = dict(zip(state[_IDS].tolist(), state[_ROUNDS].tolist(), strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"this is no state of a run's clients: {error!r}") from error
        if unknown := sorted(state.keys() - {_IDS, _ROUNDS}):
            raise SettingsError(f"this is no state of a run's clients: it holds {unknown[0]}")
        self._rounds = pairs
