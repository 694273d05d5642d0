"""Which weights the masks kept, round by round, on a sample of positions small enough to keep."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.model_arrays import Array

# Even over a layer; 4,096 bits a layer and round are half a kilobyte.
SAMPLED_POSITIONS = 4096


class ZeroPositions:
    """Collects, per layer and round, whether each sampled weight is inside the top-K mask.

    Parameters
    ----------
    stored : mapping of str to ndarray
        What :meth:`to_arrays` gave, to continue from; or empty.
    """

    def __init__(self, stored: Mapping[str, Array]) -> None:
        self._rounds = [int(number) for number in stored.get("rounds", ())]
        self._positions: dict[str, NDArray[np.int64]] = {}
        self._kept: dict[str, list[NDArray[np.uint8]]] = {}
        for key, array in stored.items():
            layer, _, kind = key.rpartition("/")
            if kind == "positions":
                self._positions[layer] = array
            elif kind == "kept":
                self._kept[layer] = list(array)

    def add(self, server_round: int, masks: Mapping[str, NDArray[np.bool_]]) -> None:
        """Add a round's flat masks; the layers must stay the same from the first round on."""
        if not masks:
            return
        self._rounds.append(server_round)
        for layer, mask in masks.items():
            if layer not in self._positions:
                count = min(SAMPLED_POSITIONS, mask.size)
                self._positions[layer] = np.linspace(0, mask.size - 1, count).astype(np.int64)
            row = np.packbits(mask[self._positions[layer]])
            self._kept.setdefault(layer, []).append(row)

    def to_arrays(self) -> dict[str, Array]:
        """Return "rounds" (R,), and per layer "<layer>/positions" (P,) and "<layer>/kept" (R, P/8).

        ``kept`` is packed by ``np.packbits``, one bit a sampled position, 1 where the weight is in
        the mask.
        """
        arrays: dict[str, Array] = {"rounds": np.array(self._rounds, dtype=np.int64)}
        for layer, positions in self._positions.items():
            arrays[f"{layer}/positions"] = positions
            arrays[f"{layer}/kept"] = np.stack(self._kept[layer])
        return arrays
