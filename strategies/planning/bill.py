"""What a run costs, whatever its method; added up round by round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.planning.vectors import COLUMNS, Row, Spent, promised, spent


@dataclass(frozen=True)
class RunCosts:
    """What a run costs, at the most.

    Parameters
    ----------
    total : Spent
        Of all clients, and the server.
    clients : tuple of Spent
        Of each client, and of the server for it, if it takes part in all that it could: is drawn in
        every round, and picked in every round of the global phase.
    is_exact : bool
        Whether a run in which nobody fails costs just `total`, but for arrays that travel as CSR
        because of their zeros: AdaSplit's activations and gradients, and ZeroFL's global model, are
        counted as if dense. Otherwise no run costs more: where it matters which clients are drawn
        and picked, the costliest are counted.
    least_learned, least_steps : int
        AdaSplit: samples that the server learns from, and steps that clients take, at the least.
    weights_up : int
        ZeroFL: masked weights that a client uploads if it trains in every round.
    """

    total: Spent
    clients: tuple[Spent, ...]
    is_exact: bool
    least_learned: int = 0
    least_steps: int = 0
    weights_up: int = 0


class Bill:
    """Adds up a run.

    Parameters
    ----------
    clients : int
        How many there are.

    Attributes
    ----------
    total, clients : NDArray of int64, shape (columns,) and (clients, columns)
        The sums, to be added to.
    is_exact : bool
        Whether they are exact so far.
    """

    def __init__(self, clients: int) -> None:
        self.total: Row = np.zeros(len(COLUMNS), np.int64)
        self.clients: NDArray[np.int64] = np.zeros((clients, len(COLUMNS)), np.int64)
        self.is_exact = True

    def costs(self) -> RunCosts:
        """Return the sums."""
        return RunCosts(
            spent(self.total),
            tuple(map(spent, self.clients)),
            self.is_exact,
            promised(self.total, "least_learned"),
            promised(self.total, "least_steps"),
        )
