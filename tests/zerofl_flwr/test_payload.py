"""Payloads there and back, and the bytes that they take."""

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

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import (
    PROTOCOL_VERSION,
    Content,
    Entry,
    NotSent,
    SparseArray,
    TensorSpec,
    Values,
    decode,
    encode,
)
from zerofl_flwr.topk import count_kept, topk_indices

FLOAT32 = np.dtype("float32")


def nbytes_of(arrays: Sequence[NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays)


def to_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def header_of(arrays: list[NDArray[Any]]) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(arrays[0].tobytes())
    return header


def spec_of(entry: Entry) -> TensorSpec:
    data = entry.data
    dtype = data.values.dtype if isinstance(data, Values) else data.dtype
    return TensorSpec(tuple(data.shape), dtype)


@st.composite
def finite_arrays(draw: st.DrawFn) -> NDArray[Any]:
    """Floats with many zeros, also -0.0, subnormal and negative ones, in any memory layout."""
    name = draw(st.sampled_from(("float16", "float32", "float64")))
    dtype, info = np.dtype(name), np.finfo(name)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    special = [0.0, 0.0, -0.0, info.smallest_subnormal, -info.tiny / 2, info.max, info.min]
    elements = st.sampled_from([dtype.type(value) for value in special]) | st.floats(
        allow_nan=False,
        allow_infinity=False,
        width=dtype.itemsize * 8,  # type: ignore[arg-type]
    )
    array = draw(hnp.arrays(dtype, shape, elements=elements))
    if draw(st.booleans()):
        return np.asarray(np.flip(array))
    return np.asarray(array, order=draw(st.sampled_from(("C", "F"))))


@st.composite
def entries_of_any_kind(draw: st.DrawFn) -> list[Entry]:
    entries = []
    for index in range(draw(st.integers(0, 4))):
        array = draw(finite_arrays())
        data: Any = draw(
            st.sampled_from(
                (
                    array,
                    SparseArray.from_dense(array),
                    Values(array.shape, array.reshape(-1)[::2]),
                    NotSent(array.shape, array.dtype),
                )
            )
        )
        content: Content = draw(st.sampled_from(("weights", "difference")))
        entries.append(Entry(f"layer{index}.weight", data, content))
    return entries


@given(entries=entries_of_any_kind(), force_csr=st.booleans(), as_npy=st.booleans())
@settings(deadline=None, max_examples=200)
def test_what_is_encoded_is_decoded(entries: list[Entry], force_csr: bool, as_npy: bool) -> None:
    arrays = encode(entries, {"round": 7}, force_csr=force_csr)
    sizes = {
        index: entry.data.values.size
        for index, entry in enumerate(entries)
        if isinstance(entry.data, Values)
    }
    payload = decode(
        [to_npy(array) for array in arrays] if as_npy else arrays,
        [spec_of(entry) for entry in entries],
        sender="client 3",
        pattern_sizes=sizes,
        max_bytes=sum(len(to_npy(array)) for array in arrays),
    )
    assert payload.meta == {"round": 7}
    for sent, got in zip(entries, payload.entries, strict=True):
        assert (got.name, got.content, got.sparse) == (sent.name, sent.content, sent.sparse)
        if isinstance(sent.data, NotSent):
            assert got.data == sent.data
        elif isinstance(sent.data, Values):
            assert isinstance(got.data, Values)
            assert got.data.shape == sent.data.shape
            assert got.data.values.tobytes() == sent.data.values.tobytes()
        else:
            assert spec_of(got) == spec_of(sent)
            assert dense(got.data).tobytes() == dense(sent.data).tobytes()
            if isinstance(sent.data, SparseArray) and force_csr:
                assert isinstance(got.data, SparseArray)
                assert got.data.flat_indices.tolist() == sent.data.flat_indices.tolist()


def dense(data: object) -> NDArray[Any]:
    if isinstance(data, SparseArray):
        return data.to_dense()
    assert isinstance(data, np.ndarray)
    return data


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16", "uint64"])
def test_integers_travel_too(dtype: str) -> None:
    array = np.array([[0, 1, 1], [0, 0, 1]], dtype)
    for data in (array, SparseArray.from_dense(array)):
        [entry] = decode(
            encode([Entry("counts", data)]), [TensorSpec((2, 3), np.dtype(dtype))], sender="server"
        ).entries
        assert dense(entry.data).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("columns", "indices"),
    [(256, "uint8"), (257, "uint16"), (65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32")],
)
def test_a_single_wide_row(columns: int, indices: str) -> None:
    row = np.zeros(columns, np.float32)
    row[[0, columns - 1]] = [1.5, -2.5]
    arrays = encode([Entry("w", SparseArray.from_dense(row))])
    assert [array.dtype.name for array in arrays] == ["uint8", "float32", indices, "uint8"]
    [entry] = decode(arrays, [TensorSpec((columns,), FLOAT32)], sender="client 0").entries
    assert dense(entry.data).tobytes() == row.tobytes()


def test_stored_zeros_of_csr_survive_and_count_as_sent() -> None:
    sent = SparseArray.from_indices([3, 8, 90], np.array([0, -0.0, 2], np.float32), (10, 10))
    [entry] = decode(
        encode([Entry("w", sent)]), [TensorSpec((10, 10), FLOAT32)], sender="client 0"
    ).entries
    assert isinstance(entry.data, SparseArray)
    assert entry.data.nnz == 3
    assert entry.data.flat_indices.tolist() == [3, 8, 90]
    assert np.signbit(entry.data.values).tolist() == [False, True, False]


def test_dense_is_chosen_once_csr_is_not_smaller() -> None:
    # 2 x 8 float32 is 64 bytes dense; CSR takes 5 bytes a value and 3 for indptr.
    for kept, encoding in ((12, "csr"), (13, "dense")):
        sparse = SparseArray.from_indices(range(kept), np.ones(kept, np.float32), (2, 8))
        arrays = encode([Entry("w", sparse)])
        assert header_of(arrays)["layers"][0]["encoding"] == encoding
        assert nbytes_of(arrays[1:]) == (63 if encoding == "csr" else 64)
        [entry] = decode(arrays, [TensorSpec((2, 8), FLOAT32)], sender="client 0").entries
        assert entry.sparse
        assert dense(entry.data).tobytes() == sparse.to_dense().tobytes()
        forced = encode([Entry("w", sparse)], force_csr=True)
        assert header_of(forced)["layers"][0]["encoding"] == "csr"
    assert nbytes_of(forced[1:]) == 13 * 5 + 3


def test_a_true_dense_layer_is_told_from_a_zero_filled_one() -> None:
    zeros = np.zeros(2, np.float32)
    arrays = encode([Entry("bias", zeros), Entry("w", SparseArray.from_dense(zeros + 1))])
    specs = [TensorSpec((2,), FLOAT32)] * 2
    assert [entry.sparse for entry in decode(arrays, specs, sender="c").entries] == [False, True]


# A 512 x 4608 layer, e.g. the last 3x3 convolution of ResNet-18: 4 bytes a value and 2 an index,
# and 513 row starts of 4 bytes.
@pytest.mark.parametrize(
    ("keep", "kept", "csr_bytes"),
    [("0.05", 117_965, 709_842), ("0.15", 353_895, 2_125_422), ("0.25", 589_824, 3_540_996)],
)
def test_bytes_of_a_large_convolution(keep: str, kept: int, csr_bytes: int) -> None:
    shape = (512, 512, 3, 3)
    weights = np.random.default_rng(0).standard_normal(shape, np.float32)
    assert count_kept(weights.size, keep) == kept
    positions = topk_indices(weights, kept)
    sparse = SparseArray.from_indices(positions, weights.reshape(-1)[positions], shape)
    arrays = encode([Entry("w", sparse)])
    assert [array.dtype.name for array in arrays] == ["uint8", "float32", "uint16", "uint32"]
    assert nbytes_of(arrays[1:]) == kept * 6 + 513 * 4 == csr_bytes
    assert nbytes_of(arrays) == csr_bytes + arrays[0].nbytes
    assert arrays[0].nbytes < 200


def test_values_at_a_frozen_pattern_travel_without_index_arrays() -> None:
    values = np.arange(5, dtype=np.float32)
    arrays = encode([Entry("w", Values((10, 10), values), "difference")])
    assert [array.nbytes for array in arrays[1:]] == [20]
    [entry] = decode(
        arrays, [TensorSpec((10, 10), FLOAT32)], sender="client 0", pattern_sizes={0: 5}
    ).entries
    assert isinstance(entry.data, Values)
    assert entry.data.values.tolist() == [0, 1, 2, 3, 4]
    assert entry.content == "difference"


def test_unsent_tensors_take_no_array() -> None:
    entry = Entry("bn.num_batches_tracked", NotSent((), np.dtype("int64")))
    arrays = encode([entry])
    assert len(arrays) == 1
    [got] = decode(arrays, [TensorSpec((), np.dtype("int64"))], sender="client 0").entries
    assert got.data == NotSent((), np.dtype("int64"))


def test_big_endian_arrays_travel_little_endian() -> None:
    arrays = encode([Entry("w", np.array([1, 2], ">f4"))])
    assert arrays[1].tobytes() == np.array([1, 2], "<f4").tobytes()


def test_an_empty_payload_is_one_header() -> None:
    arrays = encode([])
    assert len(arrays) == 1
    assert header_of(arrays) == {
        "magic": "lean-flwr",
        "protocol": PROTOCOL_VERSION,
        "meta": {},
        "layers": [],
    }
    assert decode(arrays, [], sender="server").entries == []


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([Entry("", np.ones(1))], "layer #0, field name: 1 to 256 printable"),
        ([Entry("x" * 257, np.ones(1))], "layer #0, field name"),
        ([Entry("a", np.ones(1)), Entry("a", np.ones(1))], "layer a, field name: .* twice"),
        ([Entry("a", np.ones(1, complex))], "layer a, field dtype: .* 'complex128' came"),
        ([Entry("a", np.array([{}]))], "layer a, field dtype: .* 'object' came"),
        ([Entry("a", np.ones(1), "gradient")], "layer a, field content"),  # type: ignore[arg-type]
    ],
)
def test_entries_that_cannot_travel_are_refused(entries: list[Entry], message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        encode(entries)
