"""Decoding activations refuses whatever is wrong, naming the sender, the entry and the field."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adasplit_flwr.activation_payload import (
    ActivationBatch,
    decode_activations,
    encode_activations,
)
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import Entry, NotSent, SparseArray, Values, encode

Arrays = list[Any]
Change = Callable[[Arrays], object]
IDS, SIZES, SHAPE, CLASSES = [4, 5, 9], [3, 2, 3], (2, 3, 3), 5
VALUES, LABELS, BATCH_IDS, BATCH_SIZES = range(1, 5)
NAMES = ["activations", "labels", "batch-ids", "batch-sizes"]


def good_arrays(**options: Any) -> Arrays:
    rng = np.random.default_rng(1)
    batches = [
        ActivationBatch(
            batch_id,
            rng.normal(size=(size, *SHAPE)).astype(np.float32),
            rng.integers(CLASSES, size=size),
        )
        for batch_id, size in zip(IDS, SIZES, strict=True)
    ]
    return list(encode_activations(batches, server_round=3, num_classes=CLASSES, **options))


def to_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def read(arrays: Arrays, **changes: Any) -> list[ActivationBatch]:
    arguments: dict[str, Any] = {
        "sender": "client 3",
        "server_round": 3,
        "activation_shape": SHAPE,
        "num_classes": CLASSES,
        "batch_ids": IDS,
        "max_batch_size": 3,
        **changes,
    }
    return decode_activations(arrays, **arguments)


def rewritten(position: int, data: Any, **changes: Any) -> Change:
    """Replace one entry by another, with a header that tells the truth about it."""

    def change(arrays: Arrays) -> None:
        entries = [Entry(name, array) for name, array in zip(NAMES, arrays[1:], strict=True)]
        new = data(arrays[position]) if callable(data) else data
        entries[position - 1] = Entry(NAMES[position - 1], new, **changes)
        arrays[:] = encode(entries, {"round": 3, "precision": "float32"}, force_csr=True)

    return change


def named(names: list[str]) -> Change:
    """Rename the entries, leave some out, or add one."""

    def change(arrays: Arrays) -> None:
        known = [*arrays[1:], np.zeros(3, np.float32)]
        entries = [Entry(name, array) for name, array in zip(names, known, strict=False)]
        arrays[:] = encode(entries, {"round": 3, "precision": "float32"})

    return change


def cell(position: int, at: Any, value: float) -> Change:
    def change(arrays: Arrays) -> None:
        array = np.array(arrays[position])
        array[at] = value
        arrays[position] = array

    return change


def head(edit: Callable[[dict[str, Any]], object]) -> Change:
    def change(arrays: Arrays) -> None:
        header = json.loads(arrays[0].tobytes())
        edit(header)
        arrays[0] = np.frombuffer(json.dumps(header).encode(), np.uint8)

    return change


def meta(**scalars: object) -> Change:
    return head(lambda header: header["meta"].update(scalars))


def cut(rows: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda array: array[:rows]


def same_with(**changes: Any) -> Change:
    return rewritten(VALUES, lambda array: array, **changes)


CHANGES: list[tuple[Change, str | None, str, str]] = [
    # not this payload
    (lambda a: a.clear(), None, "header", "an empty list came"),
    (lambda a: a.pop(0), None, "header", "1-D uint8 array expected"),
    (lambda a: a.pop(), None, "arrays", "announces 4 arrays, 3 came"),
    (lambda a: a.append(np.zeros(3)), None, "arrays", "announces 4 arrays, 5 came"),
    (head(lambda h: h.update(protocol=2)), None, "protocol", "2 came"),
    (head(lambda h: h["layers"][0].update(name="gradients")), None, "layers", "'gradients'"),
    (named(["activations", "labels", "batch-sizes", "batch-ids"]), None, "layers", "'batch-sizes'"),
    (named(NAMES[:3]), None, "layers", r"entries \['activations', .* came"),
    (named([*NAMES, "more"]), None, "layers", r"entries \['activations', .* came"),
    (named([]), None, "layers", r"entries \['activations', .* \[\] came"),
    (meta(round=4), None, "round", "round 3 expected, 4 came"),
    (meta(round=3.0), None, "round", r"round 3 expected, 3\.0 came"),
    (head(lambda h: h["meta"].pop("round")), None, "round", "None came"),
    (meta(precision="float64"), None, "precision", "float32, float16 expected, 'float64' came"),
    (meta(precision=32), None, "precision", "32 came"),
    (head(lambda h: h["meta"].pop("precision")), None, "precision", "None came"),
    # activations
    (meta(precision="float16"), "activations", "dtype", "float16 expected, float32 came"),
    (rewritten(VALUES, lambda a: a.astype("f8")), "activations", "dtype", "float64 came"),
    (rewritten(VALUES, lambda a: a.astype("f2")), "activations", "dtype", "float16 came"),
    (rewritten(VALUES, lambda a: a.astype("i4")), "activations", "dtype", "int32 came"),
    (rewritten(VALUES, lambda a: a[:, :1]), "activations", "shape", r"of \(8, 1, 3, 3\) came"),
    (rewritten(VALUES, lambda a: a.reshape(8, 18)), "activations", "shape", r"of \(8, 18\) came"),
    (rewritten(VALUES, lambda a: a.ravel()), "activations", "shape", r"of \(144,\) came"),
    (rewritten(VALUES, np.float32(1)), "activations", "shape", r"of \(\) came"),
    (cell(VALUES, (2, 0, 1, 1), np.nan), "activations", "data", "first is nan at 40"),
    (cell(VALUES, (0, 0, 0, 0), -np.inf), "activations", "data", "first is -inf at 0"),
    (rewritten(VALUES, NotSent((8, *SHAPE), np.dtype("f4"))), "activations", "encoding", "NotSent"),
    (
        rewritten(VALUES, Values((8, *SHAPE), np.ones(3, "f4"))),
        "activations",
        "encoding",
        "no pattern is known",
    ),
    (same_with(content="difference"), "activations", "content", "weights expected, difference"),
    # labels
    (cell(LABELS, 6, 5), "labels", "data", "sample 6 has class 5; there are 5 classes"),
    (rewritten(LABELS, lambda a: a.astype("i8")), "labels", "dtype", "uint8 expected, int64 came"),
    (rewritten(LABELS, np.full(8, -1, "i1")), "labels", "dtype", "uint8 expected, int8 came"),
    (rewritten(LABELS, lambda a: a.astype("f4")), "labels", "dtype", "float32 came"),
    (rewritten(LABELS, cut(7)), "labels", "shape", r"\(8,\) expected, \(7,\) came"),
    (rewritten(LABELS, lambda a: a[:, None]), "labels", "shape", r"\(8, 1\) came"),
    (
        rewritten(LABELS, SparseArray.from_dense),
        "labels",
        "encoding",
        "dense expected, SparseArray",
    ),
    # batch ids
    (cell(BATCH_IDS, 1, 4), "batch-ids", "data", "batch 4 came twice"),
    (cell(BATCH_IDS, 1, 6), "batch-ids", "data", "batch 6 was not asked for"),
    (rewritten(BATCH_IDS, cut(2)), "batch-ids", "data", "batch 9 is missing"),
    (rewritten(BATCH_IDS, cut(0)), "batch-ids", "data", "batch 4 is missing"),
    (rewritten(BATCH_IDS, lambda a: a[::-1]), "batch-ids", "data", r"the order \[4, 5, 9\]"),
    (rewritten(BATCH_IDS, lambda a: a[None]), "batch-ids", "shape", r"\(1, 3\) came"),
    (rewritten(BATCH_IDS, lambda a: a.astype("i8")), "batch-ids", "dtype", "int64 came"),
    (rewritten(BATCH_IDS, NotSent((3,), np.dtype("u4"))), "batch-ids", "encoding", "NotSent came"),
    # batch sizes
    (cell(BATCH_SIZES, 0, 0), "batch-sizes", "data", "1 to 3 samples a batch expected, 0 came"),
    (cell(BATCH_SIZES, 0, 4), "batch-sizes", "data", "1 to 3 samples a batch expected, 4 came"),
    (cell(BATCH_SIZES, 0, 2**32 - 1), "batch-sizes", "data", "4294967295 came"),
    (rewritten(BATCH_SIZES, cut(2)), "batch-sizes", "shape", r"\(3,\) expected, \(2,\) came"),
    (rewritten(BATCH_SIZES, lambda a: a.astype("i4")), "batch-sizes", "dtype", "int32 came"),
    (cell(BATCH_SIZES, 0, 2), "labels", "shape", r"\(7,\) expected, \(8,\) came"),
    (
        rewritten(VALUES, cut(7)),
        "batch-sizes",
        "data",
        "the batches have 8 samples together, 7 came",
    ),
]


@pytest.mark.parametrize(("change", "entry", "field", "message"), CHANGES)
@pytest.mark.parametrize("as_npy", [False, True])
def test_each_broken_field_is_named(
    change: Change, entry: str | None, field: str, message: str, as_npy: bool
) -> None:
    arrays = good_arrays()
    change(arrays)
    if as_npy:
        arrays = [to_npy(array) for array in arrays]
    with pytest.raises(PayloadError, match=message) as caught:
        read(arrays)
    error = caught.value
    assert (error.sender, error.layer, error.field) == ("client 3", entry, field)
    assert str(error).startswith("client 3, ")


def test_the_unbroken_payload_is_accepted() -> None:
    arrays = good_arrays()
    for version in (arrays, [to_npy(array) for array in arrays]):
        batches = read(version, max_samples=8)
        assert [batch.batch_id for batch in batches] == IDS
        assert [batch.activations.shape for batch in batches] == [(s, *SHAPE) for s in SIZES]


@pytest.mark.parametrize(
    ("expectation", "entry", "field"),
    [
        ({"server_round": 4}, None, "round"),
        ({"activation_shape": (2, 9)}, "activations", "shape"),
        ({"activation_shape": (2, 3, 4)}, "activations", "shape"),
        ({"activation_shape": ()}, None, "arrays"),  # more bytes than scalars could take
        ({"num_classes": 257}, "labels", "dtype"),
        ({"batch_ids": [4, 5, 6]}, "batch-ids", "data"),
        ({"batch_ids": [4, 5, 9, 10]}, "batch-ids", "data"),
        ({"batch_ids": []}, "batch-ids", "data"),
        ({"max_batch_size": 2}, "batch-sizes", "data"),
        ({"max_samples": 7}, "batch-sizes", "data"),
    ],
)
def test_another_expectation_refuses_the_same_payload(
    expectation: dict[str, Any], entry: str | None, field: str
) -> None:
    arrays = good_arrays()
    if "activation_shape" in expectation and expectation["activation_shape"] == ():
        arrays[VALUES] = np.zeros((4096, *SHAPE), np.float32)
    with pytest.raises(PayloadError) as caught:
        read(arrays, **expectation)
    assert (caught.value.layer, caught.value.field) == (entry, field)


def test_the_bytes_are_counted_before_anything_is_parsed() -> None:
    arrays = good_arrays()
    arrays[0] = np.full(arrays[0].size, 255, np.uint8)  # an unreadable header
    arrays[VALUES] = np.zeros((400, *SHAPE), np.float32)
    with pytest.raises(PayloadError, match=r"field arrays: \d+ bytes came, at most \d+ are"):
        read(arrays)


@pytest.mark.parametrize("samples", [8, 2**40])
def test_few_bytes_of_csr_cannot_ask_for_gigabytes(samples: int) -> None:
    # As CSR of one wide row, which has no row starts to pay for.
    shape = (1, 2**50) if samples == 8 else (samples,)
    sparse = SparseArray.from_indices([3], np.ones(1, np.float32), shape)
    arrays = good_arrays()
    rewritten(VALUES, sparse)(arrays)
    assert sum(array.nbytes for array in arrays) < 2000
    with pytest.raises(PayloadError, match="client 3, layer activations, field shape"):
        read(arrays)


def test_a_sparse_payload_is_checked_like_a_dense_one() -> None:
    dense = np.zeros((8, *SHAPE), np.float32)
    dense[3, 1, 2, 0] = 5
    arrays = good_arrays()
    rewritten(VALUES, SparseArray.from_dense(dense))(arrays)
    batches = read(arrays)
    np.testing.assert_array_equal(np.concatenate([b.activations for b in batches]), dense)
    cell(VALUES, 0, np.nan)(arrays)
    with pytest.raises(PayloadError, match=r"layer activations, field data: .*first is nan"):
        read(arrays)


def test_dense_float32_is_not_copied() -> None:
    tensors = [to_npy(array) for array in good_arrays()]
    for batch in read(tensors):
        assert np.shares_memory(batch.activations, np.frombuffer(tensors[VALUES], np.uint8))


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_changed_bytes_raise_nothing_but_payload_errors(data: st.DataObject) -> None:
    precision = data.draw(st.sampled_from(("float32", "float16")))
    tensors = [bytearray(to_npy(array)) for array in good_arrays(precision=precision)]
    for _ in range(data.draw(st.integers(1, 3))):
        tensor = tensors[data.draw(st.integers(0, len(tensors) - 1))]
        first = data.draw(st.sampled_from((0, min(128, len(tensor) - 1))))
        at = data.draw(st.integers(first, len(tensor) - 1))
        tensor[at] = data.draw(st.integers(0, 255))
    sender: str | None = "client 3"
    batches: list[ActivationBatch] = []
    try:
        batches = read([bytes(tensor) for tensor in tensors])
    except PayloadError as error:
        sender = error.sender
    assert sender == "client 3"
    for batch, size in zip(batches, SIZES, strict=bool(batches)):
        assert batch.activations.shape == (size, *SHAPE)
        assert np.isfinite(batch.activations).all()
        assert batch.labels.shape == (size,)
        assert ((batch.labels >= 0) & (batch.labels < CLASSES)).all()
