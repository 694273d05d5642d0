"""What activations and gradients share: stacking, splitting, and the caller's own entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr.batch_payload import PRECISIONS, BatchPayload, StackedBatches
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import SparseArray

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


def test_fewer_samples_together_tighten_the_byte_limit() -> None:
    arrays = WEIGHED.write(BATCHES, OTHERS, server_round=1, precision="float32")
    used = sum(array.nbytes for array in arrays[1:])
    # Of four samples that the batches may have, three: 3 x (12 + 2 + 1) + 2 x 8 + 8192.
    arrays[0] = np.full(3 * 15 + 16 + 8192 - used + 1, 32, np.uint8)
    with pytest.raises(PayloadError, match="8254 bytes came, at most 8253 are accepted"):
        WEIGHED.read(arrays, **EXPECTED, max_samples=3)
    with pytest.raises(PayloadError, match="client 8, field header"):
        WEIGHED.read(arrays, **EXPECTED, max_samples=9)


def test_too_many_samples_are_refused_before_they_are_made_dense(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Twenty thousand samples that take a few bytes each as CSR.
    payload = BatchPayload("embeddings", "client 8", {})
    batches = [(batch_id, np.zeros((10000, 64), np.float32)) for batch_id in (0, 1)]
    arrays = payload.write(batches, {}, server_round=1, precision="float32")
    assert sum(array.nbytes for array in arrays) < 10**5
    monkeypatch.setattr(SparseArray, "to_dense", lambda _: pytest.fail("it was made dense"))
    expected = EXPECTED | {"sample_shape": (64,), "max_batch_size": 10000}
    with pytest.raises(PayloadError) as caught:
        payload.read(arrays, **expected, max_samples=19999)
    error = caught.value
    assert (error.sender, error.layer, error.field) == ("client 8", "batch-sizes", "data")
    assert error.reason == "the batches have 20000 samples together, at most 19999 expected"


@given(
    shape=st.sampled_from([(), (0,), (1,), (3, 2), (40,)]),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    slack=st.integers(-4, 4),
    zeros=st.sampled_from((0.0, 0.9, 1.0)),
    precision=st.sampled_from(PRECISIONS),
)
@settings(deadline=None, max_examples=200)
def test_what_is_over_the_bound_is_refused_and_nothing_else_is(
    shape: tuple[int, ...], sizes: list[int], slack: int, zeros: float, precision: str
) -> None:
    rng = np.random.default_rng(sum(sizes))
    batches = [
        (number, (rng.random((size, *shape)) >= zeros).astype(np.float32))
        for number, size in enumerate(sizes)
    ]
    others = {"weights": np.ones(sum(sizes)), "seen": np.ones(sum(sizes), bool)}
    arrays = WEIGHED.write(batches, others, server_round=1, precision=precision)
    accepted = True
    try:
        WEIGHED.read(
            arrays,
            server_round=1,
            sample_shape=shape,
            batch_ids=range(len(sizes)),
            max_batch_size=12,
            max_samples=max(0, sum(sizes) + slack),
        )
    except PayloadError:
        accepted = False
    assert accepted == (slack >= 0)


@given(
    shape=st.sampled_from([(), (0,), (3, 2), (40,)]),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    precision=st.sampled_from(PRECISIONS),
)
def test_a_blank_payload_is_as_large_as_a_dense_one(
    shape: tuple[int, ...], sizes: list[int], precision: str
) -> None:
    batches = [(number, np.ones((size, *shape), np.float32)) for number, size in enumerate(sizes)]
    others = {"weights": np.ones(sum(sizes)), "seen": np.ones(sum(sizes), bool)}
    arrays = WEIGHED.write(batches, others, server_round=12, precision=precision)
    blank = WEIGHED.blank(sizes, shape, server_round=12, precision=precision)
    assert [(a.shape, a.dtype) for a in blank] == [(a.shape, a.dtype) for a in arrays]
    np.testing.assert_array_equal(blank[0], arrays[0])


def test_csr_has_to_be_worth_two_arrays_more() -> None:
    values = np.zeros((1, 200), np.float32)
    for count, encoding in ((57, "csr"), (58, "dense")):
        # 800 bytes dense; five for each number and two row starts, and 512 around two arrays.
        values[0, :count] = 1
        arrays = WEIGHED.write(
            [(0, values)],
            {"weights": np.ones(1), "seen": np.ones(1, bool)},
            server_round=1,
            precision="float32",
        )
        assert f'"encoding":"{encoding}"' in arrays[0].tobytes().decode()


def test_zeros_with_a_sign_count_when_csr_is_weighed() -> None:
    values = np.full((1, 200), -0.0, np.float32)
    arrays = WEIGHED.write(
        [(0, values)],
        {"weights": np.ones(1), "seen": np.ones(1, bool)},
        server_round=1,
        precision="float32",
    )
    assert '"encoding":"csr"' not in arrays[0].tobytes().decode()
