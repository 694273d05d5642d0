"""What AdaSplit's server knows of each client between rounds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adasplit_flwr.plans import FRESH
from strategies.state import State
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

Gradients = list[tuple[int, Array]]
"""Per batch of an exchange its id and the gradient at the cut, shape (n, *activation shape)."""

_IDS, _ROUNDS, _GRADIENT = "ids", "state-rounds", "gradient/"


class KnownClients:
    """Which state each client can continue from, and which gradients wait for it.

    A client's state round moves only when a reply of it passed its checks. So where a reply is
    lost on its way or refused, the client is asked to go on from the state before that round.
    """

    def __init__(self) -> None:
        self._state_rounds: dict[int, int] = {}
        self._gradients: dict[int, Gradients] = {}

    def state_round(self, client: int) -> int:
        """Return the last round that a client trained in; 0 for one that never did."""
        return self._state_rounds.get(client, FRESH)

    def gradients(self, client: int) -> Gradients:
        """Return the gradients of its last exchange that a client has not been given yet."""
        return self._gradients.get(client, [])

    def waiting(self) -> list[int]:
        """Return the clients for which gradients wait, ascending."""
        return sorted(self._gradients)

    def trained(self, client: int, server_round: int, gradients: Gradients) -> None:
        """Note that a client trained in a round, and what is to be sent to it next time.

        The gradients that waited before were part of that round's message.
        """
        self._state_rounds[client] = server_round
        self._gradients.pop(client, None)
        if gradients:
            self._gradients[client] = gradients

    def lost(self, client: int) -> None:
        """Note that a client has no state any more, so that it begins again."""
        self._state_rounds.pop(client, None)
        self._gradients.pop(client, None)

    def forget_gradients(self) -> None:
        """Drop what waits: client parts were shared, and it belongs to those before."""
        self._gradients.clear()

    def state_arrays(self) -> State:
        """Return everything as arrays: int64 columns, and gradients by client and batch."""
        ids = sorted(self._state_rounds)
        return {
            _IDS: np.array(ids, np.int64),
            _ROUNDS: np.array([self._state_rounds[client] for client in ids], np.int64),
            **{
                f"{_GRADIENT}{client}/{batch_id}": gradient
                for client, gradients in sorted(self._gradients.items())
                for batch_id, gradient in gradients
            },
        }

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is something else; then nothing has changed.
        """
        gradients: dict[int, Gradients] = {}
        try:
            rounds = dict(zip(state[_IDS].tolist(), state[_ROUNDS].tolist(), strict=True))
            for name in state.keys() - {_IDS, _ROUNDS}:
                client, batch_id = (int(part) for part in name.removeprefix(_GRADIENT).split("/"))
                gradients.setdefault(client, []).append((batch_id, np.array(state[name])))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"this is no state of AdaSplit's clients: {error!r}") from error
        for batches in gradients.values():
            batches.sort(key=lambda pair: pair[0])
        self._state_rounds, self._gradients = rounds, gradients
