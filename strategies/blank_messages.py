"""Messages that are as large as those of a run, and hold zeros, which take no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flwr.client import NumPyClient
from flwr.common import FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters

from strategies.metering import message_bytes
from strategies.traffic import COUNTED_BYTES, Breakdown
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npy import npy_nbytes

_TENSOR_TYPE = ndarrays_to_parameters([]).tensor_type


def blank_parameters(arrays: Sequence[Array]) -> Parameters:
    """Return tensors as long as those of some arrays; their bytes are not to be read."""
    return Parameters([bytes(npy_nbytes(array)) for array in arrays], _TENSOR_TYPE)


def blank_reply(arrays: Sequence[Array], num_examples: int, metrics: dict[str, Scalar]) -> FitRes:
    """Return a client's reply as Flower wraps it, with blank tensors."""
    wrapped = _Replying(num_examples, metrics).to_client().fit(FitIns(blank_parameters([]), {}))
    return replace(wrapped, parameters=blank_parameters(arrays))


def break_down_blank(message: FitIns | FitRes, **data: Sequence[Array]) -> Breakdown:
    """Say what a message's bytes are: the data of some arrays by category, the rest is protocol.

    Every number counts as one that is not zero.
    """
    found = {category: sum(array.nbytes for array in arrays) for category, arrays in data.items()}
    floats = sum(a.size for arrays in data.values() for a in arrays if a.dtype.kind == "f")
    return Breakdown(
        **found,
        protocol=message_bytes(message) - sum(found.values()),
        counted=COUNTED_BYTES * floats,
    )


class _Replying(NumPyClient):
    """Gives Flower a reply to wrap, as a client of this package does."""

    def __init__(self, num_examples: int, metrics: dict[str, Scalar]) -> None:
        self._reply: tuple[list[Array], int, dict[str, Scalar]] = ([], num_examples, metrics)

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        return self._reply
