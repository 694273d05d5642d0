"""What tests of the client send it, and how they read its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.common import Scalar
from numpy.typing import NDArray

from zerofl_flwr.client import ZeroFLClient
from zerofl_flwr.model_arrays import get_specs
from zerofl_flwr.payload import Entry, Payload, SparseArray, decode
from zerofl_flwr.settings import RoundPlan

Arrays = list[NDArray[Any]]

PLAN = RoundPlan(
    server_round=3,
    sparsity=0.5,
    mask_ratio=0.25,
    activation_sparsity=0.5,
    gradient_sparsity=0.0,
    topk_period=10,
    rule="top-k-weights",
    frozen=False,
)


def config_of(
    plan: RoundPlan = PLAN, others: Mapping[str, Scalar] | None = None
) -> dict[str, Scalar]:
    return {**plan.to_config(), **(others or {})}


def decoded(arrays: Arrays, client: ZeroFLClient, **options: Any) -> Payload:
    return decode(arrays, get_specs(client.model), sender="client 0", **options)


def dense(entry: Entry) -> NDArray[Any]:
    if isinstance(entry.data, SparseArray):
        return entry.data.to_dense()
    assert isinstance(entry.data, np.ndarray)
    return entry.data


def same(first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]]) -> bool:
    return [(a.dtype, a.shape, a.tobytes()) for a in first] == [
        (a.dtype, a.shape, a.tobytes()) for a in second
    ]
