"""Whose turn it is where AdaSplit's client part goes from client to client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from strategies.state import State
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

Pick = Callable[[Sequence[int]], list[int]]
"""Picks the uploaders of some clients."""


class Relay:
    """Whose turn it is to get the client part from the client before: round-robin by partition.

    A pass goes once through everybody who is available when it begins. Uploaders are picked at its
    start; where the global phase begins within a pass, among those whose turn is not over yet.

    Attributes
    ----------
    misses : int
        Turns in a row that gave no client part; a whole pass of them means that nobody works.
    """

    def __init__(self) -> None:
        self.misses = 0
        self._queue: list[int] = []
        self._picks: list[int] | None = None
        self._length = 0

    @property
    def nobody_works(self) -> bool:
        """Whether everybody of a whole pass has failed."""
        return self.misses >= self._length

    @property
    def pass_is_over(self) -> bool:
        """Whether everybody of a pass has had a turn, or has one now."""
        return not self._queue

    def order(self, available: Sequence[int]) -> list[int]:
        """Return who of some clients is next, then after that, through this pass and another."""
        queue = [client for client in self._queue if client in available]
        return [*queue, *(client for client in available if client not in queue)]

    def next(self, available: Sequence[int], pick: Pick | None) -> tuple[int, bool]:
        """Return whose turn it is and whether it uploads; who left in between is passed over.

        Parameters
        ----------
        available : sequence of int
            Partition ids, ascending; at least one.
        pick : callable or None
            Picks the uploaders of some clients; None in the local phase.
        """
        queue = [client for client in self._queue if client in available]
        if not queue:
            queue, self._picks, self._length = list(available), None, len(available)
        client, self._queue = queue[0], queue[1:]
        return client, self._uploads(client, queue, pick)

    def goes_on(self, client: int, available: Sequence[int], pick: Pick | None) -> bool:
        """Say whether the client whose turn goes on uploads; parameters as of :meth:`next`."""
        queue = [client, *(other for other in self._queue if other in available)]
        return self._uploads(client, queue, pick)

    def _uploads(self, client: int, queue: Sequence[int], pick: Pick | None) -> bool:
        if pick is not None and self._picks is None:
            self._picks = pick(queue)
        return client in (self._picks or ())

    def state_arrays(self) -> State:
        """Return everything as int64 arrays; ``picks`` only once there are some."""
        state = {
            "queue": np.array(self._queue, np.int64),
            "counts": np.array([self.misses, self._length], np.int64),
        }
        if self._picks is not None:
            state["picks"] = np.array(self._picks, np.int64)
        return state

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is something else; then nothing has changed.
        """
        try:
            misses, length = state["counts"].tolist()
            queue = state["queue"].tolist()
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"this is no state of AdaSplit's relay: {error!r}") from error
        self.misses, self._length, self._queue = misses, length, queue
        self._picks = state["picks"].tolist() if "picks" in state else None
