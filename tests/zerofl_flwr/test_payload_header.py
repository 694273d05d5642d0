"""The JSON header of a payload."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload_entries import MetaValue
from zerofl_flwr.payload_header import (
    MAX_HEADER_BYTES,
    LayerHeader,
    has_magic,
    read_header,
    write_header,
)

LAYERS = [
    LayerHeader("conv.weight", (8, 4, 3, 3), "float32", "csr", "difference", nnz=12),
    LayerHeader("bn.bias", (8,), "float32", "dense", "weights", sparse=False),
    LayerHeader("bn.steps", (), "int64", "absent", "weights"),
]
META: dict[str, MetaValue] = {"round": 3, "rule": "top-k-diff", "loss": 0.25, "frozen": False}


def to_array(value: object) -> NDArray[np.uint8]:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return np.frombuffer(text, np.uint8)


def good() -> dict[str, Any]:
    header: dict[str, Any] = json.loads(write_header(LAYERS, META).tobytes())
    return header


def test_what_is_written_is_read() -> None:
    array = write_header(LAYERS, META)
    assert array.dtype == np.uint8
    assert array.ndim == 1
    assert read_header(array, sender="client 3") == (LAYERS, META)


def test_the_json_is_what_the_format_says() -> None:
    assert good() == {
        "magic": "lean-flwr",
        "protocol": 1,
        "meta": META,
        "layers": [
            {
                "name": "conv.weight",
                "shape": [8, 4, 3, 3],
                "dtype": "float32",
                "encoding": "csr",
                "content": "difference",
                "nnz": 12,
            },
            {
                "name": "bn.bias",
                "shape": [8],
                "dtype": "float32",
                "encoding": "dense",
                "content": "weights",
                "sparse": False,
            },
            {
                "name": "bn.steps",
                "shape": [],
                "dtype": "int64",
                "encoding": "absent",
                "content": "weights",
            },
        ],
    }


SCALARS = (
    st.text(max_size=20)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
)
KEYS = st.text(min_size=1, max_size=20).filter(str.isprintable)


@given(st.dictionaries(KEYS, SCALARS, max_size=5))
@settings(deadline=None, max_examples=100)
def test_meta_comes_back_with_its_types(meta: dict[str, Any]) -> None:
    _, read = read_header(write_header([], meta), sender="server")
    assert read == meta
    assert [type(value) for value in read.values()] == [type(value) for value in meta.values()]


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"loss": float("nan")}, "'loss' must be .* not nan"),
        ({"loss": float("inf")}, "'loss' must be .* not inf"),
        ({"n": 2**63}, "'n' must be .* 64-bit int"),
        ({"n": np.int64(3)}, "'n' must be"),
        ({"n": None}, "'n' must be .* not None"),
        ({"n": [1]}, "'n' must be"),
        ({"": 1}, "keys have 1 to 256 printable"),
        ({"a\nb": 1}, "keys have"),
        ({1: 1}, "keys have"),
    ],
)
def test_meta_that_cannot_travel_is_refused_by_the_writer(
    meta: dict[Any, Any], message: str
) -> None:
    with pytest.raises(PayloadError, match=message):
        write_header([], meta)


def test_a_header_beyond_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(PayloadError, match=r"exceed the limit of 16777216"):
        write_header([], {"text": "x" * MAX_HEADER_BYTES})
    with pytest.raises(PayloadError, match=r"client 3, field header: .* exceed the limit"):
        read_header(np.zeros(MAX_HEADER_BYTES + 1, np.uint8), sender="client 3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(3, np.int8), "a 1-D uint8 array expected, 1-D int8 came"),
        (np.zeros((3, 3), np.uint8), "a 1-D uint8 array expected, 2-D uint8 came"),
        (b"", "not readable as JSON"),
        (b"{", "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b'{"a":' * 100_000, "not readable as JSON"),
        (b"1" * 5000, "not readable as JSON"),
        (b'{"magic": NaN}', "NaN is not a JSON number"),
        (b'{"magic": "lean-flwr", "magic": 1}', "a key occurs twice"),
        (b"[]", "a JSON object expected, a list came"),
        (b"3", "a JSON object expected, a int came"),
    ],
)
def test_unreadable_headers_are_refused(content: Any, message: str) -> None:
    array = to_array(content) if isinstance(content, bytes) else content
    assert not has_magic(array)
    with pytest.raises(PayloadError, match=f"client 3, field header: .*{message}"):
        read_header(array, sender="client 3")


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"magic": "other"}, "magic", "'lean-flwr' expected, 'other' came"),
        ({"magic": None}, "magic", "None came"),
        ({"protocol": 2}, "protocol", "version 2 came, this side speaks version 1"),
        ({"protocol": "1"}, "protocol", "version '1' came"),
        ({"protocol": True}, "protocol", "version True came"),
        ({"protocol": 1.0}, "protocol", "version 1.0 came"),
        ({"extra": 1}, "header", "'extra'"),
        ({"layers": {}}, "layers", "a list expected"),
        ({"meta": []}, "meta", "a JSON object expected"),
        ({"meta": {"a": {}}}, "meta", "'a' must be"),
        ({"meta": {"a": 2**64}}, "meta", "'a' must be"),
        ({"meta": {"x" * 257: 1}}, "meta", "keys have"),
    ],
)
def test_wrong_top_fields_are_refused(change: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(PayloadError, match=f"^client 3, field {field}: .*{message}"):
        read_header(to_array({**good(), **change}), sender="client 3")


def test_infinite_meta_written_as_a_huge_number_is_refused() -> None:
    text = write_header(LAYERS, {"loss": 0.25}).tobytes().replace(b"0.25", b"1e999")
    with pytest.raises(PayloadError, match=r"field meta: 'loss' must be .* not inf"):
        read_header(to_array(text), sender="client 3")


def test_a_missing_top_field_is_refused() -> None:
    header = good()
    del header["meta"]
    with pytest.raises(PayloadError, match=r"field header: .*'meta'.* expected"):
        read_header(to_array(header), sender="client 3")


@pytest.mark.parametrize(
    ("change", "layer", "field"),
    [
        ({"name": 3}, "#0", "name"),
        ({"name": ""}, "#0", "name"),
        ({"name": "a\x1b[31m"}, "#0", "name"),
        ({"name": "x" * 257}, "#0", "name"),
        ({"name": "bn.bias"}, "bn.bias", "name"),
        ({"shape": "8"}, "conv.weight", "shape"),
        ({"shape": [8, -4]}, "conv.weight", "shape"),
        ({"shape": [8, 4.0]}, "conv.weight", "shape"),
        ({"shape": [8, True]}, "conv.weight", "shape"),
        ({"shape": [1] * 33}, "conv.weight", "shape"),
        ({"shape": [2**56]}, "conv.weight", "shape"),
        ({"shape": [2**40, 0, 2**40]}, "conv.weight", "shape"),
        ({"shape": [[[[]]]]}, "conv.weight", "shape"),
        ({"dtype": "object"}, "conv.weight", "dtype"),
        ({"dtype": "O"}, "conv.weight", "dtype"),
        ({"dtype": ["float32"]}, "conv.weight", "dtype"),
        ({"encoding": "zip"}, "conv.weight", "encoding"),
        ({"encoding": {}}, "conv.weight", "encoding"),
        ({"content": "gradients"}, "conv.weight", "content"),
        ({"content": None}, "conv.weight", "content"),
        ({"nnz": -1}, "conv.weight", "nnz"),
        ({"nnz": 289}, "conv.weight", "nnz"),
        ({"nnz": 1.0}, "conv.weight", "nnz"),
        ({"nnz": True}, "conv.weight", "nnz"),
        ({"nnz": None}, "conv.weight", "nnz"),
        ({"surplus": 1}, "conv.weight", "layers"),
        ({"encoding": "dense"}, "conv.weight", "layers"),
        ({"encoding": "absent"}, "conv.weight", "layers"),
    ],
)
def test_wrong_layer_fields_are_refused(change: dict[str, Any], layer: str, field: str) -> None:
    header = good()
    header["layers"][0].update(change)
    with pytest.raises(PayloadError) as caught:
        read_header(to_array(header), sender="client 3")
    assert (caught.value.sender, caught.value.layer, caught.value.field) == (
        "client 3",
        layer,
        field,
    )
    assert str(caught.value).startswith(f"client 3, layer {layer}, field {field}: ")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["name", "shape", "dtype", "encoding", "content", "nnz"])
def test_missing_layer_fields_are_refused(key: str) -> None:
    header = good()
    del header["layers"][0][key]
    with pytest.raises(PayloadError, match=r"^client 3, layer (#0|conv.weight), field "):
        read_header(to_array(header), sender="client 3")


@pytest.mark.parametrize("sparse", [0, None, "false"])
def test_the_flag_of_a_zero_filled_layer_is_a_bool(sparse: object) -> None:
    header = good()
    header["layers"][1]["sparse"] = sparse
    with pytest.raises(PayloadError, match=r"layer bn.bias, field sparse: true or false"):
        read_header(to_array(header), sender="client 3")


def test_a_layer_that_is_no_object_is_refused() -> None:
    with pytest.raises(PayloadError, match="layer #1, field layers: a JSON object expected"):
        read_header(to_array({**good(), "layers": [good()["layers"][0], 3]}), sender="client 3")


def test_magic_is_seen_whatever_the_version() -> None:
    assert has_magic(to_array({"magic": "lean-flwr", "protocol": 99}))
    assert not has_magic(to_array({"magic": "lean"}))
    assert not has_magic(np.zeros((2, 2), np.float32))
