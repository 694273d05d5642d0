"""The mean of whole models, with Flower's own arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from strategies.accumulator import MeanAccumulator
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import Entry, NotSent


def mean_model(
    current: Sequence[Array], models: Iterable[tuple[Sequence[Array], int]], total: int
) -> list[Array]:
    """Average models one by one, so that only one of them is held.

    Parameters
    ----------
    current : sequence of ndarray
        The model that they were made of; integer arrays keep its values.
    models : iterable of (arrays, int)
        Each model and its weight.
    total : int
        Sum of the weights.

    Returns
    -------
    list of ndarray
        In the dtypes of `current`; what Flower's FedAvg makes of the same, bit for bit. What
        overflows becomes infinite without a warning.
    """
    accumulator = MeanAccumulator(current, total)
    for arrays, weight in models:
        accumulator.add([_entry(position, a) for position, a in enumerate(arrays)], weight)
    return accumulator.result()


def _entry(position: int, array: Array) -> Entry:
    if np.issubdtype(array.dtype, np.floating):
        return Entry(str(position), array)
    return Entry(str(position), NotSent(array.shape, array.dtype))
