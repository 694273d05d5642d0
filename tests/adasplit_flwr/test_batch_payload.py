"""What activations and gradients share: stacking, splitting, and the caller's own entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adasplit_flwr.batch_payload import PRECISIONS, BatchPayload, StackedBatches
from zerofl_flwr.errors import PayloadError

WEIGHED = BatchPayload(
    "embeddings", "client 8", {"weights": np.dtype("float16"), "seen": np.dtype("bool")}
)
BATCHES = [(0, np.ones((2, 3), np.float32)), (1, np.full((1, 3), 2, np.float32))]
OTHERS: dict[str, Any] = {"weights": np.array([0.5, 1, 2]), "seen": np.array([True, False, True])}
EXPECTED: dict[str, Any] = {
    "server_round": 1,
    "sample_shape": (3,),
    "batch_ids": [0, 1],
    "max_batch_size": 2,
}


def test_batches_are_split_as_they_were_stacked() -> None:
    stacked = StackedBatches(np.arange(12, dtype=np.float32).reshape(6, 2), {}, [3, 1, 2])
    parts = stacked.split(stacked.values)
    assert [part.tolist() for part in parts] == [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7]],
        [[8, 9], [10, 11]],
    ]
    assert all(np.shares_memory(part, stacked.values) for part in parts)
    assert [part.tolist() for part in stacked.split(np.arange(6))] == [[0, 1, 2], [3], [4, 5]]


def test_no_batches_are_split_into_none() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert StackedBatches(empty, {}, []).split(empty) == []


@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_entries_travel_in_their_types(precision: str) -> None:
    arrays = WEIGHED.write(BATCHES, OTHERS, server_round=1, precision=precision)
    assert [array.dtype.name for array in arrays[1:]] == [
        precision,
        "float16",
        "bool",
        "uint32",
        "uint32",
    ]
    stacked = WEIGHED.read(arrays, **EXPECTED)
    assert stacked.sizes == [2, 1]
    assert stacked.values.dtype == np.float32
    assert {name: array.tolist() for name, array in stacked.others.items()} == {
        "weights": [0.5, 1, 2],
        "seen": [True, False, True],
    }


def test_an_entry_of_another_kind_is_refused_with_the_senders_name() -> None:
    arrays = BatchPayload("embeddings", "client 8", {"weights": np.dtype("float32")}).write(
        BATCHES, OTHERS, server_round=1, precision="float32"
    )
    with pytest.raises(PayloadError, match=r"client 8, field layers: entries .*'seen'"):
        WEIGHED.read(arrays, **EXPECTED)


def test_the_byte_limit_is_that_of_the_largest_payload_expected() -> None:
    batches = [(i, np.ones((2, 3), np.float32)) for i in (0, 1)]
    others = {"weights": np.ones(4), "seen": np.ones(4, bool)}
    arrays = WEIGHED.write(batches, others, server_round=1, precision="float32")
    assert WEIGHED.read(arrays, **EXPECTED).sizes == [2, 2]
    # Samples 4 x (12 + 2 + 1), ids and sizes 2 x 8, and 8192 for the headers.
    used = sum(array.nbytes for array in arrays[1:])
    padding = 4 * 15 + 16 + 8192 - used
    arrays[0] = np.full(padding, 32, np.uint8)
    with pytest.raises(PayloadError, match="client 8, field header"):
        WEIGHED.read(arrays, **EXPECTED)
    arrays[0] = np.full(padding + 1, 32, np.uint8)
    with pytest.raises(PayloadError, match="8269 bytes came, at most 8268 are accepted"):
        WEIGHED.read(arrays, **EXPECTED)
