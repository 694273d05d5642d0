"""The client part and head that AdaSplit's server holds: what clients start from, or share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.common import ndarrays_to_parameters
from torch import nn

from adasplit_flwr.weights_payload import (
    CLIENT,
    HEAD,
    decode_weights,
    encode_weights,
    named_arrays,
    named_specs,
)
from strategies.accumulator import MeanAccumulator
from strategies.state import State
from strategies.wrapped import check_finite
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import Entry, NotSent


class ClientWeights:
    """Arrays of the client part and of the head (AdaSplit, arXiv 2112.01637).

    With personal client parts they are those that every client starts from; averaged or relayed
    ones take the place of these when they are shared.

    Parameters
    ----------
    client, head : nn.Module
        Parts of the cut network; their state is copied.

    Attributes
    ----------
    arrays : dict of str to ndarray
        By ``client.<key>`` and ``head.<key>``, in state_dict order.
    """

    def __init__(self, client: nn.Module, head: nn.Module) -> None:
        parts = {CLIENT: client, HEAD: head}
        self.arrays = named_arrays(parts)
        self._specs = named_specs(parts)

    def encode(self, server_round: int) -> list[bytes]:
        """Write the payload that goes down with a message, as the tensors of one."""
        payload = encode_weights(self.arrays, server_round=server_round)
        return ndarrays_to_parameters(payload).tensors

    def decode(
        self, tensors: Sequence[bytes], *, sender: str, server_round: int
    ) -> dict[str, Array]:
        """Read what a client uploads: its float arrays, by name; views of `tensors`.

        Raises
        ------
        PayloadError
            Naming the sender, the layer and the field.
        """
        return decode_weights(tensors, self._specs, server_round=server_round, sender=sender)

    def average(
        self, replies: Sequence[tuple[Mapping[str, Array], int]], server_round: int
    ) -> None:
        """Take the mean of clients' weights; what is not a float array stays.

        Parameters
        ----------
        replies : sequence of (weights, samples)
            One or more, in partition order, as :meth:`decode` gave them; weighted by samples.
        server_round : int
            Named in the error.

        Raises
        ------
        RoundFailedError
            If the mean is not finite; then nothing has changed.
        """
        names, current = list(self.arrays), list(self.arrays.values())
        accumulator = MeanAccumulator(current, sum(samples for _, samples in replies))
        for weights, samples in replies:
            accumulator.add([self._entry(name, weights) for name in names], samples)
        mean = accumulator.result()
        check_finite(mean, names, f"round {server_round}: the mean of the client parts")
        self.arrays = dict(zip(names, mean, strict=True))

    def take(self, weights: Mapping[str, Array]) -> None:
        """Take one client's weights as they are; what is not a float array stays."""
        self.arrays = {
            name: np.array(weights[name]) if name in weights else array
            for name, array in self.arrays.items()
        }

    def state_arrays(self) -> State:
        """Return the arrays by name; no copies."""
        return dict(self.arrays)

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If the state is that of another client part or head; then nothing has changed.
        """
        if differing := sorted(state.keys() ^ self._specs.keys()):
            raise SettingsError(
                f"the state and this network do not both have {', '.join(differing)}: it was saved "
                "with another client part or head"
            )
        for name, spec in self._specs.items():
            array = state[name]
            if (array.shape, array.dtype) != (spec.shape, spec.dtype):
                raise SettingsError(
                    f"{name} of the state is {array.dtype} of shape {array.shape}; expected "
                    f"{spec.dtype} of shape {spec.shape}"
                )
        self.arrays = {name: np.array(state[name]) for name in self._specs}

    def _entry(self, name: str, weights: Mapping[str, Array]) -> Entry:
        spec = self._specs[name]
        return Entry(name, weights[name] if name in weights else NotSent(spec.shape, spec.dtype))
