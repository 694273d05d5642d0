"""The server's copy of the global model: its layers' names, its masks, and how it goes out."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, TypeVar

import numpy as np
from flwr.common import (
    EvaluateIns,
    FitIns,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from zerofl_flwr.csr_wire import csr_nbytes
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.exchange import names_by_position
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import Entry, SparseArray, TensorSpec, encode
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.topk import count_unmasked, topk_indices

_Instructions = TypeVar("_Instructions", FitIns, EvaluateIns)


class GlobalModel:
    """Arrays of the global model with what the server has learned about them.

    Parameters
    ----------
    sparse_downlink : bool
        Send arrays as CSR where that is smaller.
    array_names : sequence of str, optional
        State_dict keys of the arrays, in order; left out, they are learned from the replies.

    Attributes
    ----------
    arrays : list of ndarray
        The weights w_t that the round's clients start from.
    names : list of str
        Layer names; positions as text while nobody has told them.
    masked : list of int
        Positions whose uploads are sparse, from the first reply that had any. They decide what
        is reported and what is frozen; clients may mask others.
    patterns : dict of int to ndarray
        Flat positions of the weights that a frozen mask keeps, by position; empty until frozen.
    """

    def __init__(self, *, sparse_downlink: bool, array_names: Sequence[str] | None = None) -> None:
        self.arrays: list[Array] = []
        self.names = [] if array_names is None else _checked_names(array_names)
        self._names_given = array_names is not None
        self.masked: list[int] = []
        self.patterns: dict[int, NDArray[np.int64]] = {}
        self._sparse_downlink = sparse_downlink
        self._told_difference = False  # no state of the run: one warning a process

    @property
    def specs(self) -> list[TensorSpec]:
        """Shape and dtype of each array."""
        return [TensorSpec(array.shape, array.dtype) for array in self.arrays]

    @property
    def known_names(self) -> list[str] | None:
        """The arrays' state_dict keys; None while only their positions are known."""
        told = self._names_given or self.names != names_by_position(len(self.names))
        return self.names if told else None

    @property
    def has_statistics(self) -> bool:
        """Whether an array is known to hold BatchNorm's statistics."""
        return any(map(is_statistic, self.names))

    @property
    def pattern_sizes(self) -> dict[int, int]:
        """Number of values that a reply must hold at each frozen position."""
        return {position: len(pattern) for position, pattern in self.patterns.items()}

    def check_fits(self, parameters: Parameters) -> None:
        """Hold the names that the user gave against a model.

        Raises
        ------
        SettingsError
            If the model has another number of arrays.
        """
        count = len(parameters.tensors)
        if self._names_given and count != len(self.names):
            raise SettingsError(
                f"array_names has {len(self.names)} names, but the model has {count} arrays"
            )

    def take(self, parameters: Parameters) -> None:
        """Take the round's global model.

        Raises
        ------
        SettingsError
            If the names that the user gave are those of another model.
        """
        self.check_fits(parameters)
        self.arrays = parameters_to_ndarrays(parameters)
        if len(self.names) != len(self.arrays):
            self.names = names_by_position(len(self.arrays))

    def load(self, parameters: Parameters, plan: RoundPlan) -> Parameters:
        """Take the round's global model, and freeze its masks when the plan says so.

        Returns
        -------
        flwr.common.Parameters
            The model that the round starts from: `parameters`, or what frozen masks leave of them.

        Raises
        ------
        RoundFailedError
            If masks are to be frozen and no client has named a masked layer yet.
        SettingsError
            If the names that the user gave are those of another model.
        """
        self.take(parameters)
        if not plan.frozen:
            self.patterns = {}
            return parameters
        if not self.patterns:
            self._freeze(plan)
        self.arrays = self.pruned(self.arrays)
        return ndarrays_to_parameters(self.arrays)

    def learn(
        self, names: Sequence[str], masked: Sequence[int], *, sender: str = "a client"
    ) -> None:
        """Take names and masked positions from a good reply.

        What an earlier reply told stays, so that clients that mask nothing, or know their arrays by
        position only, do not undo it from round to round. The first client that masks other layers
        is named in a warning: no reply is refused for that, also where masks are frozen.
        """
        if self.known_names is None:
            self.names = list(names)
        if not self.masked:
            self.masked = list(masked)
        if masked and set(masked) != set(self.masked) and not self._told_difference:
            self._told_difference = True
            log(
                WARNING,
                "%s masks %s besides, and does not mask %s, of the layers that the first reply "
                "named; reports, and masks once they are frozen, keep to those %d layers",
                sender,
                self._listed(set(masked) - set(self.masked)),
                self._listed(set(self.masked) - set(masked)),
                len(self.masked),
            )

    def pruned(self, arrays: list[Array]) -> list[Array]:
        """Set everything outside the frozen patterns to zero; without them, change nothing."""
        if not self.patterns:
            return arrays
        result = list(arrays)
        for position, pattern in self.patterns.items():
            # Not zeros_like: of a Fortran-ordered array, reshape would make a copy.
            kept = np.zeros(result[position].shape, result[position].dtype)
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
            elif mean is not None and is_statistic(name):
                kept[position] = mean[position]
        return kept

    def downlink(self, parameters: Parameters, plan: RoundPlan) -> Parameters:
        """Encode a global model for the clients.

        Lossless: a decoded model has the same bits. Frozen layers always travel as CSR, whose
        positions are the pattern that the clients are to train. A model that would not shrink as a
        whole, headers included, goes out as Flower's own dense list.
        """
        if not (self._sparse_downlink or self.patterns):
            return parameters
        arrays = parameters_to_ndarrays(parameters)
        names = self.names
        if len(names) != len(arrays):
            names = names_by_position(len(arrays))
        entries = [
            Entry(name, self._outgoing(position, array))
            for position, (name, array) in enumerate(zip(names, arrays, strict=True))
        ]
        payload = encode(entries, {"round": plan.server_round}, force_csr=bool(self.patterns))
        encoded = ndarrays_to_parameters(payload)
        if self.patterns or _num_bytes(encoded) < _num_bytes(parameters):
            return encoded
        return parameters

    def outgoing(
        self, pairs: Sequence[tuple[ClientProxy, _Instructions]], plan: RoundPlan
    ) -> list[tuple[ClientProxy, _Instructions]]:
        """Encode what a strategy wants to send, each model once, and put the plan beside it.

        Instructions that several clients share stay one object.
        """
        downlinks: dict[int, Parameters] = {}
        prepared: dict[int, _Instructions] = {}
        for _, wanted in pairs:
            model = wanted.parameters
            if id(model) not in downlinks:
                downlinks[id(model)] = self.downlink(model, plan)
            if id(wanted) not in prepared:
                config = {**wanted.config, **plan.to_config()}
                prepared[id(wanted)] = type(wanted)(downlinks[id(model)], config)
        return [(client, prepared[id(wanted)]) for client, wanted in pairs]

    def state_arrays(self) -> dict[str, Array]:
        """Return names, masked positions and patterns as arrays, for a checkpoint."""
        names = np.frombuffer(json.dumps(self.names).encode(), dtype=np.uint8)
        patterns = {f"pattern/{position}": p for position, p in self.patterns.items()}
        return {"names": names, "masked": np.array(self.masked, dtype=np.int64), **patterns}

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If the state is another object's, or has other names than the user gave.
        """
        if missing := {"names", "masked"} - set(state):
            raise SettingsError(f"this is not ZeroFL's state: {sorted(missing)} are not in it")
        names = json.loads(state["names"].tobytes())
        if not self._names_given:
            self.names = names
        elif names not in (self.names, names_by_position(len(names))):
            raise SettingsError(
                "array_names are not the names that the run has had so far: it was started with "
                f"{reprlib.repr(names)}"
            )
        self.masked = [int(position) for position in state["masked"]]
        self.patterns = {
            int(name.removeprefix("pattern/")): pattern
            for name, pattern in state.items()
            if name.startswith("pattern/")
        }

    def _listed(self, positions: set[int]) -> str:
        return ", ".join(self.names[position] for position in sorted(positions)) or "nothing"

    def _freeze(self, plan: RoundPlan) -> None:
        if not self.masked:
            raise RoundFailedError(
                f"round {plan.server_round}: the mask is to be frozen, but no reply so far "
                "had a masked layer"
            )
        for position in self.masked:
            array = self.arrays[position]
            kept = count_unmasked(array.size, plan.sparsity)
            self.patterns[position] = topk_indices(array, kept)

    def _outgoing(self, position: int, array: Array) -> Array | SparseArray:
        if position in self.patterns:
            pattern = self.patterns[position]
            return SparseArray.from_indices(pattern, array.reshape(-1)[pattern], array.shape)
        floating = np.issubdtype(array.dtype, np.floating)
        if self.patterns or not (self._sparse_downlink and floating and array.ndim >= 2):
            return array
        if csr_nbytes(array.shape, array.dtype, int(np.count_nonzero(array))) >= array.nbytes:
            return array
        return SparseArray.from_dense(array)


def is_statistic(name: str) -> bool:
    """Say whether an array of this name holds BatchNorm's statistics, which no optimizer steps."""
    return name.endswith((".running_mean", ".running_var"))


def _num_bytes(parameters: Parameters) -> int:
    return sum(len(tensor) for tensor in parameters.tensors)


def _checked_names(array_names: Any) -> list[str]:
    is_list = isinstance(array_names, Sequence) and not isinstance(array_names, str | bytes)
    if not is_list or not all(isinstance(name, str) for name in array_names):
        raise SettingsError(
            f"array_names is {reprlib.repr(array_names)}; expected a list of names, such as "
            "list(model.state_dict())"
        )
    repeated = [name for name, count in Counter(array_names).items() if count > 1]
    if repeated:
        raise SettingsError(f"array_names has {repeated[0]!r} more than once")
    return list(array_names)
