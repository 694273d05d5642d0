"""The server's copy of the global model: its layers' names, its masks, and how it goes out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.common import Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from numpy.typing import NDArray

from zerofl_flwr.errors import RoundFailedError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import Entry, SparseArray, TensorSpec, encode
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.topk import count_unmasked, topk_indices

# CSR with the narrowest indices needs 6 bytes a float32 value, dense 4: no gain above this.
_CSR_MAY_WIN_BELOW = 0.8


class GlobalModel:
    """Arrays of the global model with what the server has learned about them.

    Parameters
    ----------
    sparse_downlink : bool
        Send arrays as CSR where that is smaller.

    Attributes
    ----------
    arrays : list of ndarray
        The weights w_t that the round's clients start from.
    names : list of str
        Layer names, from the clients' replies; positions as text until the first one.
    masked : list of int
        Positions whose uploads are sparse, from the clients' replies.
    patterns : dict of int to ndarray
        Flat positions of the weights that a frozen mask keeps, by position; empty until frozen.
    """

    def __init__(self, *, sparse_downlink: bool) -> None:
        self.arrays: list[Array] = []
        self.names: list[str] = []
        self.masked: list[int] = []
        self.patterns: dict[int, NDArray[np.int64]] = {}
        self._sparse_downlink = sparse_downlink

    @property
    def specs(self) -> list[TensorSpec]:
        """Shape and dtype of each array."""
        return [TensorSpec(array.shape, array.dtype) for array in self.arrays]

    @property
    def pattern_sizes(self) -> dict[int, int]:
        """Number of values that a reply must hold at each frozen position."""
        return {position: len(pattern) for position, pattern in self.patterns.items()}

    def load(self, parameters: Parameters, plan: RoundPlan) -> None:
        """Take the round's global model, and freeze its masks when the plan says so.

        Raises
        ------
        RoundFailedError
            If masks are to be frozen and no client has named a masked layer yet.
        """
        self.arrays = parameters_to_ndarrays(parameters)
        if len(self.names) != len(self.arrays):
            self.names = [str(position) for position in range(len(self.arrays))]
        if plan.frozen and not self.patterns:
            if not self.masked:
                raise RoundFailedError(
                    f"round {plan.server_round}: the mask is to be frozen, but no reply so far "
                    "had a masked layer"
                )
            for position in self.masked:
                array = self.arrays[position]
                kept = count_unmasked(array.size, plan.sparsity)
                self.patterns[position] = topk_indices(array, kept)
        self.arrays = self.pruned(self.arrays)

    def name_layers(self, names: Sequence[str], masked: Sequence[int]) -> None:
        """Learn names and masked positions from a good reply."""
        self.names, self.masked = list(names), list(masked)

    def pruned(self, arrays: list[Array]) -> list[Array]:
        """Set everything outside the frozen patterns to zero; without them, change nothing."""
        if not self.patterns:
            return arrays
        result = list(arrays)
        for position, pattern in self.patterns.items():
            kept = np.zeros_like(result[position])
            kept.reshape(-1)[pattern] = result[position].reshape(-1)[pattern]
            result[position] = kept
        return result

    def with_kept(self, arrays: list[Array], mean: Sequence[Array] | None) -> list[Array]:
        """Undo what a strategy did to integer arrays, and a server optimizer to statistics.

        Parameters
        ----------
        arrays : list of ndarray
            The wrapped strategy's new model.
        mean : sequence of ndarray, optional
            The clients' mean, which BatchNorm statistics take; None leaves them as they came.
        """
        kept = list(arrays)
        for position, (name, array) in enumerate(zip(self.names, arrays, strict=True)):
            if not np.issubdtype(array.dtype, np.floating):
                kept[position] = self.arrays[position]
            elif mean is not None and name.endswith((".running_mean", ".running_var")):
                kept[position] = mean[position]
        return kept

    def downlink(self, parameters: Parameters, plan: RoundPlan) -> Parameters:
        """Encode a global model for the clients.

        Lossless: a decoded model has the same bits. Frozen layers always travel as CSR, whose
        positions are the pattern that the clients are to train. A model in which nothing would
        shrink goes out as Flower's own dense list.
        """
        if not (self._sparse_downlink or self.patterns):
            return parameters
        arrays = self.pruned(parameters_to_ndarrays(parameters))
        entries = [
            Entry(name, self._outgoing(position, array))
            for position, (name, array) in enumerate(zip(self.names, arrays, strict=True))
        ]
        if not any(isinstance(entry.data, SparseArray) for entry in entries):
            return parameters
        payload = encode(entries, {"round": plan.server_round}, force_csr=bool(self.patterns))
        return ndarrays_to_parameters(payload)

    def state_arrays(self) -> dict[str, Array]:
        """Return names, masked positions and patterns as arrays, for a checkpoint."""
        names = np.frombuffer(json.dumps(self.names).encode(), dtype=np.uint8)
        patterns = {f"pattern/{position}": p for position, p in self.patterns.items()}
        return {"names": names, "masked": np.array(self.masked, dtype=np.int64), **patterns}

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned."""
        self.names = json.loads(state["names"].tobytes())
        self.masked = [int(position) for position in state["masked"]]
        self.patterns = {
            int(name.removeprefix("pattern/")): pattern
            for name, pattern in state.items()
            if name.startswith("pattern/")
        }

    def _outgoing(self, position: int, array: Array) -> Array | SparseArray:
        if position in self.patterns:
            pattern = self.patterns[position]
            return SparseArray.from_indices(pattern, array.reshape(-1)[pattern], array.shape)
        floating = np.issubdtype(array.dtype, np.floating)
        if self.patterns or not (self._sparse_downlink and floating and array.ndim >= 2):
            return array
        if np.count_nonzero(array) > _CSR_MAY_WIN_BELOW * array.size:
            return array
        return SparseArray.from_dense(array)
