"""Decoding refuses whatever is wrong, naming the sender, the layer and the field."""

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

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import (
    Entry,
    NotSent,
    Payload,
    SparseArray,
    TensorSpec,
    Values,
    decode,
    encode,
    is_payload,
)

SPECS = [
    TensorSpec((4, 2, 5, 5), np.dtype("float32")),
    TensorSpec((4,), np.dtype("float32")),
    TensorSpec((), np.dtype("int64")),
    TensorSpec((3, 6), np.dtype("float16")),
    TensorSpec((2, 50), np.dtype("float32")),
]
PATTERN_SIZES = {3: 4}
# Where the arrays of these layers lie in the payload.
CONV_DATA, CONV_INDICES, CONV_INDPTR, BIAS, PATTERN, FC_DATA, FC_INDICES, FC_INDPTR = range(1, 9)

Arrays = list[Any]
Change = Callable[[Arrays], object]


def good_arrays() -> Arrays:
    conv = SparseArray.from_indices(
        [0, 7, 49, 50, 199], np.array([1, -2, 0, 4, 5], np.float32), (4, 2, 5, 5)
    )
    fc = SparseArray.from_indices([3, 60, 99], np.array([1, 2, 3], np.float32), (2, 50))
    entries = [
        Entry("conv.weight", conv, "difference"),
        Entry("conv.bias", np.arange(4, dtype=np.float32)),
        Entry("bn.steps", NotSent((), np.dtype("int64"))),
        Entry("mid.weight", Values((3, 6), np.ones(4, np.float16)), "difference"),
        Entry("fc.weight", fc, "difference"),
    ]
    return list(encode(entries, {"round": 3}))


def to_npy(array: NDArray[Any], *, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def read(arrays: Arrays, **changes: Any) -> Payload:
    arguments: dict[str, Any] = {"sender": "client 3", "pattern_sizes": PATTERN_SIZES, **changes}
    return decode(arrays, arguments.pop("expected", SPECS), **arguments)


def put(index: int, value: object) -> Change:
    def change(arrays: Arrays) -> None:
        arrays[index] = value

    return change


def cell(index: int, at: int, value: float) -> Change:
    def change(arrays: Arrays) -> None:
        array = np.array(arrays[index])
        array[at] = value
        arrays[index] = array

    return change


def cast(index: int, dtype: str) -> Change:
    def change(arrays: Arrays) -> None:
        arrays[index] = arrays[index].astype(dtype)

    return change


def head(edit: Callable[[dict[str, Any]], object]) -> Change:
    def change(arrays: Arrays) -> None:
        header = json.loads(arrays[0].tobytes())
        edit(header)
        arrays[0] = np.frombuffer(json.dumps(header).encode(), np.uint8)

    return change


def layer(position: int, **fields: object) -> Change:
    return head(lambda header: header["layers"][position].update(fields))


CHANGES: list[tuple[Change, str | None, str, str]] = [
    # the header and the number of things
    (put(0, np.zeros(3, np.float32)), None, "header", "1-D uint8 array expected"),
    (put(0, np.frombuffer(b"{]", np.uint8)), None, "header", "not readable as JSON"),
    (put(0, b"nonsense"), None, "header", "do not start as a .npy"),
    (head(lambda h: h.update(magic="x")), None, "magic", "'lean-flwr' expected, 'x' came"),
    (head(lambda h: h.update(protocol=2)), None, "protocol", "2 came, .* speaks version 1"),
    (head(lambda h: h.update(meta={"a": []})), None, "meta", "'a' must be"),
    (head(lambda h: h["layers"].pop()), None, "layers", "5 layers expected, 4 came"),
    (head(lambda h: h["layers"].clear()), None, "layers", "5 layers expected, 0 came"),
    (lambda a: a.pop(), None, "arrays", "announces 8 arrays, 7 came"),
    (lambda a: a.append(np.zeros(1)), None, "arrays", "announces 8 arrays, 9 came"),
    (lambda a: a.clear(), None, "header", "an empty list came"),
    (put(BIAS, [0.0] * 4), None, "arrays", r"arrays\[4\] is a list"),
    (put(BIAS, None), None, "arrays", r"arrays\[4\] is a NoneType"),
    # what the header says of a layer
    (layer(0, shape=[4, 50]), "conv.weight", "shape", r"\(4, 2, 5, 5\) expected, \(4, 50\) came"),
    (layer(0, shape=[4, 2, 5, 2**40]), "conv.weight", "shape", "expected"),
    (layer(0, shape=[-4, 2, 5, 5]), "conv.weight", "shape", "a list of sizes expected"),
    (layer(0, dtype="float64"), "conv.weight", "dtype", "float32 expected, float64 came"),
    (layer(0, dtype="object"), "conv.weight", "dtype", "one of .* expected"),
    (layer(0, encoding="rle"), "conv.weight", "encoding", "one of .* 'rle' came"),
    (layer(0, content="noise"), "conv.weight", "content", "one of .* 'noise' came"),
    (layer(0, nnz=201), "conv.weight", "nnz", "0 to 200 expected, 201 came"),
    (layer(0, nnz=4), "conv.weight", "data", r"shape \(4,\) expected, \(5,\) came"),
    (layer(1, name="conv.weight"), "conv.weight", "name", "twice"),
    (layer(1, encoding="values"), "conv.bias", "layers", "'sparse'"),
    (layer(1, sparse="no"), "conv.bias", "sparse", "true or false"),
    (layer(2, shape=[1]), "bn.steps", "shape", r"\(\) expected, \(1,\) came"),
    (layer(2, dtype="int32"), "bn.steps", "dtype", "int64 expected, int32 came"),
    # CSR arrays
    (cast(CONV_DATA, "float64"), "conv.weight", "data", "float32 expected, float64 came"),
    (put(CONV_DATA, np.ones((5, 1), "f4")), "conv.weight", "data", r"\(5,\) expected, \(5, 1\)"),
    (cell(CONV_DATA, 2, np.nan), "conv.weight", "data", "first is nan at 2"),
    (cell(CONV_DATA, 4, np.inf), "conv.weight", "data", "first is inf at 4"),
    (cast(CONV_INDICES, "int64"), "conv.weight", "indices", "uint8 expected, int64 came"),
    (cast(CONV_INDICES, "float32"), "conv.weight", "indices", "uint8 expected, float32 came"),
    (put(CONV_INDICES, np.zeros(0, "u1")), "conv.weight", "indices", r"\(5,\) expected, \(0,\)"),
    (cell(CONV_INDICES, 4, 50), "conv.weight", "indices", "column 50 is out of range"),
    (cell(CONV_INDICES, 0, 7), "conv.weight", "indices", "ascend strictly"),
    (cell(CONV_INDICES, 1, 49), "conv.weight", "indices", "ascend strictly"),
    (cell(CONV_INDPTR, 0, 1), "conv.weight", "indptr", "from 0 to 5, runs from 1 to 5"),
    (cell(CONV_INDPTR, 4, 4), "conv.weight", "indptr", "from 0 to 5, runs from 0 to 4"),
    (cell(CONV_INDPTR, 2, 9), "conv.weight", "indptr", "must not descend"),
    (put(CONV_INDPTR, np.array([0, 5], "u1")), "conv.weight", "indptr", r"\(5,\) expected"),
    (cast(FC_INDPTR, "uint16"), "fc.weight", "indptr", "uint8 expected, uint16 came"),
    (put(FC_DATA, np.array([{}] * 3)), "fc.weight", "data", "float32 expected, object came"),
    # dense arrays and values at a pattern
    (put(BIAS, np.zeros(5, "f4")), "conv.bias", "data", r"\(4,\) expected, \(5,\) came"),
    (put(BIAS, np.zeros((4, 1), "f4")), "conv.bias", "data", r"\(4,\) expected, \(4, 1\) came"),
    (cast(BIAS, "float16"), "conv.bias", "data", "float32 expected, float16 came"),
    (cast(BIAS, ">f4"), "conv.bias", "data", "float32 expected, >f4 came"),
    (cell(BIAS, 3, -np.inf), "conv.bias", "data", "first is -inf at 3"),
    (put(PATTERN, np.ones(5, "f2")), "mid.weight", "data", r"\(4,\) expected, \(5,\) came"),
    (cast(PATTERN, "float32"), "mid.weight", "data", "float16 expected, float32 came"),
    (cell(PATTERN, 0, np.nan), "mid.weight", "data", "first is nan at 0"),
    # .npy bytes
    (put(BIAS, to_npy(np.zeros(4, "f4"))[:-1]), "conv.bias", "data", "takes 144 bytes"),
    (put(BIAS, b""), "conv.bias", "data", "0 bytes came"),
    (put(BIAS, to_npy(np.array([{}]), pickled=True)), "conv.bias", "data", "only numbers"),
    (put(FC_INDICES, b"\x93NUMPY" + bytes(99)), "fc.weight", "indices", r"version 0\.0"),
]


@pytest.mark.parametrize(("change", "layer_name", "field", "message"), CHANGES)
@pytest.mark.parametrize("as_npy", [False, True])
def test_each_broken_field_is_named(
    change: Change, layer_name: str | None, field: str, message: str, as_npy: bool
) -> None:
    arrays = good_arrays()
    change(arrays)
    if as_npy:
        arrays = [
            to_npy(a) if isinstance(a, np.ndarray) and not a.dtype.hasobject else a for a in arrays
        ]
    with pytest.raises(PayloadError, match=message) as caught:
        read(arrays)
    error = caught.value
    assert (error.sender, error.layer, error.field) == ("client 3", layer_name, field)
    place = f"client 3, layer {layer_name}, " if layer_name else "client 3, "
    assert str(error).startswith(f"{place}field {field}: ")


def test_the_unbroken_payload_is_accepted() -> None:
    arrays = good_arrays()
    for version in (arrays, [to_npy(array) for array in arrays]):
        payload = read(version)
        assert [entry.name for entry in payload.entries] == [
            "conv.weight",
            "conv.bias",
            "bn.steps",
            "mid.weight",
            "fc.weight",
        ]
        assert payload.meta == {"round": 3}


def test_values_without_a_known_pattern_are_refused() -> None:
    for sizes in (None, {}, {0: 4}):
        with pytest.raises(PayloadError, match=r"layer mid.weight, field encoding: .*no pattern"):
            read(good_arrays(), pattern_sizes=sizes)


def test_expectations_that_do_not_match_are_refused_before_any_array_is_looked_at() -> None:
    arrays = good_arrays()
    arrays[1:] = [b"unreadable"] * 8
    with pytest.raises(PayloadError, match=r"layer conv.weight, field shape"):
        read(arrays, expected=[TensorSpec((4, 2, 3, 3), np.dtype("float32")), *SPECS[1:]])


def test_the_byte_limit_comes_first() -> None:
    arrays = good_arrays()
    total = sum(array.nbytes for array in arrays)
    read(arrays, max_bytes=total)
    arrays[0] = np.full(arrays[0].size, 255, np.uint8)  # an unreadable header
    with pytest.raises(
        PayloadError, match=f"client 3, field arrays: {total} bytes came, at most {total - 1}"
    ):
        read(arrays, max_bytes=total - 1)


def test_a_receiver_without_a_model_takes_the_headers_word() -> None:
    payload = read(good_arrays(), expected=None)
    assert [tuple(entry.data.shape) for entry in payload.entries] == [s.shape for s in SPECS]
    arrays = good_arrays()
    cell(CONV_INDICES, 4, 50)(arrays)
    with pytest.raises(PayloadError, match=r"layer conv.weight, field indices: column 50"):
        read(arrays, expected=None)


def test_values_share_memory_with_the_message() -> None:
    tensors = [to_npy(array) for array in good_arrays()]
    entries = read(tensors).entries
    assert isinstance(entries[0].data, SparseArray)
    assert np.shares_memory(entries[0].data.values, np.frombuffer(tensors[CONV_DATA], np.uint8))
    assert isinstance(entries[1].data, np.ndarray)
    assert np.shares_memory(entries[1].data, np.frombuffer(tensors[BIAS], np.uint8))


def test_is_payload() -> None:
    arrays = good_arrays()
    assert is_payload(arrays)
    assert is_payload([to_npy(array) for array in arrays])
    head(lambda header: header.update(protocol=99))(arrays)
    assert is_payload(arrays)
    assert not is_payload([])
    assert not is_payload([b""])
    assert not is_payload([np.zeros((3, 3), np.float32)])
    assert not is_payload([np.zeros(9, np.uint8)])
    assert not is_payload([to_npy(np.zeros(9, np.uint8))])


def check_outcome(arrays: Arrays) -> None:
    """Check that the arrays are either refused by name or read as something valid."""
    refusal: PayloadError | None = None
    try:
        payload = read(arrays)
    except PayloadError as error:
        refusal = error
    if refusal is None:
        check_valid(payload)
    else:
        assert refusal.sender == "client 3"


def check_valid(payload: Payload) -> None:
    for entry, spec in zip(payload.entries, SPECS, strict=True):
        data = entry.data
        assert tuple(data.shape) == spec.shape
        if isinstance(data, SparseArray):
            data.matrix.check_format(full_check=True)
            assert np.isfinite(data.to_dense()).all()
            assert data.to_dense().shape == spec.shape
        elif isinstance(data, Values):
            assert data.values.shape == (4,)
            assert np.isfinite(data.values).all()
        elif isinstance(data, np.ndarray):
            assert data.dtype == spec.dtype
            assert np.isfinite(data).all()


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_changed_bytes_raise_nothing_but_payload_errors(data: st.DataObject) -> None:
    tensors = [bytearray(to_npy(array)) for array in good_arrays()]
    for _ in range(data.draw(st.integers(1, 3))):
        tensor = tensors[data.draw(st.integers(0, len(tensors) - 1))]
        # Half of the changes hit the contents, the others the .npy header before them.
        first = data.draw(st.sampled_from((0, min(128, len(tensor) - 1))))
        at = data.draw(st.integers(first, len(tensor) - 1))
        action = data.draw(st.sampled_from(("set", "cut", "insert")))
        if action == "set":
            tensor[at] = data.draw(st.integers(0, 255))
        elif action == "cut" and at:
            del tensor[at:]
        else:
            tensor[at:at] = data.draw(st.binary(max_size=4))
    check_outcome([bytes(tensor) for tensor in tensors])


@given(index=st.integers(1, 8), values=st.lists(st.integers(0, 255), max_size=12))
@settings(deadline=None, max_examples=300)
def test_arbitrary_array_contents_raise_nothing_but_payload_errors(
    index: int, values: list[int]
) -> None:
    arrays = good_arrays()
    array = np.array(arrays[index])
    raw = array.view(np.uint8)
    raw[: len(values)] = values[: raw.size]
    arrays[index] = array
    check_outcome(arrays)
