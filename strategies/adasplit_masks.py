"""How the masks of AdaSplit's clients relate, as data for pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adasplit_flwr.masked_server import MaskedServer


@dataclass(frozen=True, eq=False)
class MaskSummary:
    """The masks that have been trained so far (AdaSplit, arXiv 2112.01637).

    Parameters
    ----------
    clients : list of int
        Partition ids, ascending; empty without masks.
    density : NDArray of float64, shape (clients,)
        How much of the server part each lets through: the mean of sigmoid(m) for soft masks, the
        share kept for hard ones.
    overlap : NDArray of float64, shape (clients, clients)
        Of the positions where either of two masks is positive, the share where both are. Two masks
        drawn at random overlap by a third.
    """

    clients: list[int]
    density: NDArray[np.float64]
    overlap: NDArray[np.float64]


def summarise_masks(server: MaskedServer) -> MaskSummary:
    """Read every mask once; a bit a weight and client is held meanwhile."""
    clients = server.clients()
    kept = [np.packbits(server.kept(client).numpy()) for client in clients]
    overlap = np.ones((len(clients), len(clients)))
    for row, one in enumerate(kept):
        for column, other in enumerate(kept[:row]):
            both, either = (int(np.bitwise_count(x).sum()) for x in (one & other, one | other))
            overlap[row, column] = overlap[column, row] = both / either if either else 1.0
    density = np.array([server.density(client) for client in clients], np.float64)
    return MaskSummary(clients, density, overlap)
