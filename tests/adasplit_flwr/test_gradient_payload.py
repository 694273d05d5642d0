"""Gradients there and back, and what a client refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from adasplit_flwr.activation_payload import ActivationBatch, encode_activations
from adasplit_flwr.gradient_payload import decode_gradients, encode_gradients
from zerofl_flwr.errors import PayloadError, SettingsError

TWO = [
    (4, np.array([[1, 2.5], [-3, 0]], np.float32)),
    (9, np.array([[0.125, 4]], np.float32)),
]


def read(arrays: list[NDArray[Any]], **changes: Any) -> list[tuple[int, NDArray[np.float32]]]:
    arguments: dict[str, Any] = {
        "server_round": 3,
        "activation_shape": (2,),
        "batch_ids": [4, 9],
        "batch_sizes": [2, 1],
        **changes,
    }
    return decode_gradients(arrays, **arguments)


def test_what_travels_by_hand() -> None:
    arrays = encode_gradients(TWO, server_round=3)
    header = json.loads(arrays[0].tobytes())
    assert header["meta"] == {"round": 3, "precision": "float32"}
    assert [layer["name"] for layer in header["layers"]] == [
        "gradients",
        "batch-ids",
        "batch-sizes",
    ]
    assert [array.tolist() for array in arrays[1:]] == [
        [[1, 2.5], [-3, 0], [0.125, 4]],
        [4, 9],
        [2, 1],
    ]
    assert [(batch_id, part.tolist()) for batch_id, part in read(arrays)] == [
        (4, [[1, 2.5], [-3, 0]]),
        (9, [[0.125, 4]]),
    ]


@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    sizes=st.dictionaries(st.integers(0, 2**32 - 1), st.integers(1, 6), min_size=1, max_size=5),
    zeros=st.sampled_from((0.0, 0.9, 1.0)),
    precision=st.sampled_from(("float32", "float16")),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=80)
def test_what_is_encoded_is_decoded(
    shape: tuple[int, ...], sizes: dict[int, int], zeros: float, precision: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    batches = []
    for batch_id, size in sizes.items():
        values = rng.normal(scale=1e-3, size=(size, *shape)).astype(np.float32)
        values[rng.random(values.shape) < zeros] = 0
        batches.append((batch_id, values))
    again = read(
        encode_gradients(batches, server_round=3, precision=precision),
        activation_shape=shape,
        batch_ids=list(sizes),
        batch_sizes=list(sizes.values()),
    )
    assert [batch_id for batch_id, _ in again] == list(sizes)
    for (_, sent), (_, got) in zip(batches, again, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, sent.astype(precision).astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "layer", "field", "message"),
    [
        ({"server_round": 2}, None, "round", "round 2 expected, 3 came"),
        ({"activation_shape": (3,)}, "gradients", "shape", r"samples of shape \(3,\) expected"),
        ({"batch_ids": [9, 4]}, "batch-ids", "data", r"the order \[9, 4\] expected"),
        ({"batch_ids": [4, 8]}, "batch-ids", "data", "batch 9 was not asked for"),
        ({"batch_sizes": [2, 2]}, "batch-sizes", "data", "batch 9: 2 samples expected, 1 came"),
        ({"batch_sizes": [1, 1]}, "batch-sizes", "data", "1 to 1 samples a batch expected, 2"),
    ],
)
def test_another_expectation_is_refused_by_name(
    changes: dict[str, Any], layer: str | None, field: str, message: str
) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        read(encode_gradients(TWO, server_round=3), **changes)
    assert (caught.value.sender, caught.value.layer, caught.value.field) == ("server", layer, field)


def put(index: int, at: Any, value: float) -> Callable[[list[NDArray[Any]]], None]:
    def change(arrays: list[NDArray[Any]]) -> None:
        arrays[index] = np.array(arrays[index])
        arrays[index][at] = value

    return change


@pytest.mark.parametrize(
    ("change", "layer", "message"),
    [
        (put(1, (0, 1), np.nan), "gradients", "first is nan at 1"),
        (put(2, 1, 4), "batch-ids", "batch 4 came twice"),
        (put(3, 1, 0), "batch-sizes", "0 came"),
        (put(3, 1, 2), "batch-sizes", "4 samples together, at most 3 expected"),
    ],
)
def test_broken_arrays_are_refused_by_name(
    change: Callable[[list[NDArray[Any]]], None], layer: str, message: str
) -> None:
    arrays = encode_gradients(TWO, server_round=3)
    change(arrays)
    with pytest.raises(PayloadError, match=f"server, layer {layer}, field data: .*{message}"):
        read(arrays)


def test_activations_are_no_gradients() -> None:
    arrays = encode_activations(
        [ActivationBatch(i, values, np.zeros(len(values), np.int64)) for i, values in TWO],
        server_round=3,
        num_classes=2,
    )
    with pytest.raises(PayloadError, match=r"server, field layers: entries \['gradients'"):
        read(arrays)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "field data: there is no batch"),
        ([(1, np.ones((1, 2)))], "field dtype: batch 1: float32 expected, float64 came"),
        ([(1, np.full((1, 2), np.inf, "f4"))], "field data: batch 1: values are not finite"),
        ([(1, np.full((1, 2), 7e4, "f4"))], "batch 1: values are too large for float16"),
        ([TWO[0], (4, TWO[1][1])], "field data: ids occur twice"),
    ],
)
def test_what_cannot_be_sent_is_refused(
    batches: list[tuple[int, NDArray[Any]]], message: str
) -> None:
    with pytest.raises(PayloadError, match=f"server, layer .*{message}"):
        encode_gradients(batches, server_round=1, precision="float16")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(SettingsError, match="unknown precision 'half'"):
        encode_gradients(TWO, server_round=1, precision="half")
