"""The bound of a sparse downlink where it is closest: models that are barely sent sparse."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common import FitIns, ndarrays_to_parameters

from strategies.downlink import GlobalModel
from strategies.metering import message_bytes
from strategies.planning.zerofl_messages import Model
from zerofl_flwr import ZeroFLSettings
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import TensorSpec

NAMES = ("first.weight", "second.weight", "second.bias")


def sent(arrays: list[Array]) -> int:
    """Measure the message that goes out in round 3."""
    plan = ZeroFLSettings(sparsity=0.9).plan(3)
    model = GlobalModel(sparse_downlink=True, array_names=NAMES)
    told = model.downlink(ndarrays_to_parameters(arrays), plan)
    return message_bytes(FitIns(told, {**plan.to_config()}))


@pytest.mark.parametrize("columns", [100, 600])
def test_a_model_that_is_barely_sparse_is_within_the_bound(columns: int) -> None:
    shapes = ((30, columns), (20, columns), (20,))
    specs = [TensorSpec(shape, np.dtype("float32")) for shape in shapes]
    plan = ZeroFLSettings(sparsity=0.9).plan(3)
    bound = sum(Model(NAMES, specs, [0, 1]).downlink(plan, {}, sparse=True).by_category().values())
    largest, dense = 0, sent([np.ones(shape, np.float32) for shape in shapes])
    for zeros in range(5 * columns, 50 * columns):  # with fewer every array is sent dense
        flat = np.ones(50 * columns, np.float32)
        flat[:zeros] = 0
        first, second = np.split(flat, [30 * columns])
        arrays = [first.reshape(shapes[0]), second.reshape(shapes[1]), np.ones(20, np.float32)]
        size = sent(arrays)
        largest = max(largest, size)
        if size < dense - 2000:
            break
    assert dense < largest <= bound
