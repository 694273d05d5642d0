"""Activations and labels there and back, the bytes that they take, and what is never sent."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from adasplit_flwr.activation_payload import (
    ActivationBatch,
    decode_activations,
    encode_activations,
)
from zerofl_flwr.errors import PayloadError, SettingsError


def to_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def header_of(arrays: Sequence[NDArray[Any]]) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(arrays[0].tobytes())
    return header


def batch(
    batch_id: int, activations: Any, labels: Sequence[int], dtype: str = "float32"
) -> ActivationBatch:
    return ActivationBatch(batch_id, np.array(activations, dtype), np.array(labels, np.int64))


TWO = [batch(4, [[1, 2.5], [-3, 0]], [0, 2]), batch(9, [[0.1, 4]], [1])]


def test_what_travels_by_hand() -> None:
    arrays = encode_activations(TWO, server_round=3, num_classes=3)
    header = header_of(arrays)
    assert header["meta"] == {"round": 3, "precision": "float32"}
    names = ["activations", "labels", "batch-ids", "batch-sizes"]
    assert [layer["name"] for layer in header["layers"]] == names
    assert {layer["content"] for layer in header["layers"]} == {"weights"}
    _, activations, labels, ids, sizes = arrays
    assert activations.tolist() == [[1, 2.5], [-3, 0], [np.float32(0.1), 4]]
    assert (labels.tolist(), ids.tolist(), sizes.tolist()) == ([0, 2, 1], [4, 9], [2, 1])
    dtypes = [array.dtype for array in arrays[1:]]
    assert dtypes == ["float32", "uint8", "uint32", "uint32"]


@pytest.mark.parametrize(
    ("num_classes", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")],
)
def test_labels_travel_in_the_narrowest_type(num_classes: int, dtype: str) -> None:
    arrays = encode_activations(
        [batch(0, [[1.0], [2.0]], [0, num_classes - 1])], server_round=1, num_classes=num_classes
    )
    assert arrays[2].dtype == np.dtype(dtype)
    [again] = decode_activations(
        arrays,
        sender="client 3",
        server_round=1,
        activation_shape=(1,),
        num_classes=num_classes,
        batch_ids=[0],
        max_batch_size=2,
    )
    assert again.labels.tolist() == [0, num_classes - 1]
    assert again.labels.dtype == np.int64


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[ActivationBatch], int]:
    """One to five batches of one shape with a share of exact zeros, and the number of classes."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6))
    num_classes = draw(st.sampled_from((1, 5, 256, 300)))
    ids = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5, unique=True))
    share = draw(st.sampled_from((0.0, 0.5, 0.95, 1.0)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batches = []
    for batch_id in ids:
        size = draw(st.integers(1, 9))
        values = rng.normal(scale=30, size=(size, *shape)).astype(np.float32)
        values[rng.random(values.shape) < share] = 0
        labels = rng.integers(num_classes, size=size)
        if draw(st.booleans()):
            values = np.asarray(values, order="F")
        batches.append(ActivationBatch(batch_id, values, labels))
    return batches, num_classes


@given(
    exchange=exchanges(),
    precision=st.sampled_from(("float32", "float16")),
    as_npy=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_what_is_encoded_is_decoded(
    exchange: tuple[list[ActivationBatch], int], precision: str, as_npy: bool
) -> None:
    batches, num_classes = exchange
    arrays = encode_activations(
        batches, server_round=7, num_classes=num_classes, precision=precision
    )
    dense = sum(batch.activations.size for batch in batches) * np.dtype(precision).itemsize
    assert sum(array.nbytes for array in arrays[1:]) <= dense + sum(
        batch.labels.nbytes + 8 for batch in batches
    )
    again = decode_activations(
        [to_npy(array) for array in arrays] if as_npy else arrays,
        sender="client 3",
        server_round=7,
        activation_shape=batches[0].activations.shape[1:],
        num_classes=num_classes,
        batch_ids=[batch.batch_id for batch in batches],
        max_batch_size=max(len(batch.labels) for batch in batches),
    )
    assert len(again) == len(batches)
    for sent, got in zip(batches, again, strict=True):
        assert got.batch_id == sent.batch_id
        assert (got.activations.dtype.name, got.labels.dtype.name) == ("float32", "int64")
        expected = sent.activations.astype(precision).astype(np.float32)
        np.testing.assert_array_equal(got.activations, expected)
        np.testing.assert_array_equal(got.labels, sent.labels)


def test_zeros_decide_between_dense_and_csr() -> None:
    values = np.ones((8, 4, 5, 5), np.float32)
    for zeros, encoding in ((0, "dense"), (15, "dense"), (40, "csr"), (99, "csr")):
        values.reshape(8, -1)[:, :zeros] = 0
        arrays = encode_activations(
            [ActivationBatch(0, values, np.zeros(8, np.int64))], server_round=1, num_classes=2
        )
        assert header_of(arrays)["layers"][0]["encoding"] == encoding
        if zeros == 40:
            # 60 of each 100 at 4 + 1 bytes, and 9 uint16 row starts: below 3,200 bytes.
            assert sum(array.nbytes for array in arrays[1:4]) == 8 * 60 * 5 + 18


def test_float16_halves_the_bytes() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(32, 20, 4, 4)).astype(np.float32)
    full, half = (
        encode_activations(
            [ActivationBatch(0, values, np.zeros(32, np.int64))],
            server_round=1,
            num_classes=10,
            precision=precision,
        )
        for precision in ("float32", "float16")
    )
    assert full[1].nbytes == 2 * half[1].nbytes == 40_960


@pytest.mark.parametrize("value", [65_520.0, -1e30])
def test_values_beyond_float16_name_the_batch(value: float) -> None:
    batches = [TWO[0], batch(9, [[value, 1]], [0])]
    encode_activations(batches, server_round=1, num_classes=3)
    with pytest.raises(
        PayloadError, match="client, layer activations, field data: batch 9: values are too large"
    ):
        encode_activations(batches, server_round=1, num_classes=3, precision="float16")
    # The largest of float16 and what rounds to it are right.
    fits = [batch(9, [[65_504, 65_519]], [0])]
    assert encode_activations(fits, server_round=1, num_classes=3, precision="float16")[
        1
    ].tolist() == [[65_504, 65_504]]


@pytest.mark.parametrize(
    ("batches", "entry", "field", "message"),
    [
        ([], "batch-ids", "data", "no batch to send"),
        ([batch(-1, [[1]], [0])], "batch-ids", "data", "batch -1: ids are from 0"),
        ([batch(2**32, [[1]], [0])], "batch-ids", "data", "batch 4294967296"),
        ([TWO[0], TWO[0]], "batch-ids", "data", r"ids occur twice in \[4, 4\]"),
        ([batch(1, [[1]], [0], "float64")], "activations", "dtype", "batch 1: .* float64 came"),
        ([batch(1, [[1]], [0], "float16")], "activations", "dtype", "batch 1: .* float16 came"),
        ([batch(1, [[np.nan]], [0])], "activations", "data", "batch 1: values are not finite"),
        ([batch(1, [[np.inf]], [0])], "activations", "data", "batch 1: values are not finite"),
        ([TWO[0], batch(9, [[1]], [0])], "activations", "shape", r"batch 9: .* \(1, 1\) came"),
        ([batch(1, np.ones((0, 2)), [])], "activations", "shape", r"batch 1: .* \(0, 2\) came"),
        ([batch(1, 1.0, [0])], "labels", "shape", r"batch 1: \(\) expected, \(1,\) came"),
        ([batch(1, [[1]], [3])], "labels", "data", "batch 1: class 3 came; there are 3 classes"),
        ([batch(1, [[1]], [-1])], "labels", "data", "batch 1: class -1 came"),
        ([batch(1, [[1]], [0, 1])], "labels", "shape", r"batch 1: \(1,\) expected, \(2,\) came"),
        (
            [ActivationBatch(1, np.ones((), np.float32), np.array(0))],
            "labels",
            "shape",
            r"batch 1: \(\) expected, \(\) came",
        ),
        (
            [ActivationBatch(1, np.ones((1, 2), np.float32), np.zeros(1, np.int32))],
            "labels",
            "dtype",
            "batch 1: int64 expected, int32 came",
        ),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_cannot_be_sent_is_refused(
    batches: list[ActivationBatch], entry: str, field: str, message: str, precision: str
) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        encode_activations(batches, server_round=1, num_classes=3, precision=precision)
    assert (caught.value.sender, caught.value.layer, caught.value.field) == ("client", entry, field)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="unknown precision 'float61'; did you mean 'float16'"):
        encode_activations(TWO, server_round=1, num_classes=3, precision="float61")
    with pytest.raises(SettingsError, match="num_classes is 0; it must be 1 or more"):
        encode_activations(TWO, server_round=1, num_classes=0)


def test_the_senders_arrays_stay_as_they_are() -> None:
    before = [(b.activations.copy(), b.labels.copy()) for b in TWO]
    arrays = encode_activations(TWO, server_round=1, num_classes=3)
    arrays[1][:] = 9
    for (activations, labels), kept in zip(before, TWO, strict=True):
        np.testing.assert_array_equal(kept.activations, activations)
        np.testing.assert_array_equal(kept.labels, labels)
