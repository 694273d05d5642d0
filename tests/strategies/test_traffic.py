"""A message's bytes by category: they add up, whatever came, and are those of its arrays."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, FitRes, Parameters, ndarrays_to_parameters
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adasplit_flwr.activation_payload import ActivationBatch, encode_activations
from adasplit_flwr.gradient_payload import encode_gradients
from adasplit_flwr.weights_payload import encode_weights
from strategies.metering import Meter, message_bytes
from strategies.traffic import CATEGORIES, NO_BYTES, Breakdown, break_down
from tests.strategies.federation import OK
from zerofl_flwr.payload import Entry, NotSent, SparseArray, Values, encode

Arrays = list[NDArray[Any]]
Bytes = list[bytes]


def npy(*arrays: NDArray[Any]) -> Bytes:
    return ndarrays_to_parameters(list(arrays)).tensors


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def activations(values: NDArray[Any], precision: str = "float32") -> Bytes:
    """Encode one batch, of classes below 10."""
    batch = ActivationBatch(0, values, np.arange(len(values)) % 10)
    return npy(*encode_activations([batch], server_round=1, num_classes=10, precision=precision))


def gradients(values: NDArray[Any]) -> Bytes:
    return npy(*encode_gradients([(0, values)], server_round=1))


def sparse_layer(seed: int = 0) -> NDArray[np.float32]:
    """One layer of shape (8, 100) with five non-zeros."""
    array = np.zeros((8, 100), np.float32)
    array.flat[np.random.default_rng(seed).choice(800, 5, replace=False)] = 1.5
    return array


def parts(tensors: Bytes, total: int = 1_000_000) -> dict[str, int]:
    """Break a message down; without the categories of which there is nothing."""
    found = break_down(tensors, total)
    assert sum(found.by_category().values()) == total
    return {k: v for k, v in vars(found).items() if v and k != "protocol"}


def test_a_message_of_all_kinds_by_hand() -> None:
    # 3 samples of 4 floats, 5 of them zero, 3 labels; 2 samples of 4 gradients; a weight of 6 and
    # a bias of 2 floats, of which one is zero, with a counter that stays.
    values = np.array([[0, 0, 1, 2], [0, 3, 0, 4], [5, 6, 7, 0]], np.float32)
    weights = {
        "client.weight": np.ones((2, 3), np.float32),
        "client.bias": f32(0, 1),
        "client.count": np.array(7),
    }
    tensors = [
        *activations(values),
        *npy(*encode_weights(weights, server_round=1)),
        *gradients(np.ones((2, 4), np.float32)),
    ]
    message = FitIns(Parameters(tensors, "numpy.ndarray"), {"rate": 0.5})
    size = message_bytes(message)
    assert break_down(tensors, size) == Breakdown(
        activations=48,
        labels=3,
        gradients=32,
        weights=32,
        indices=0,
        protocol=size - 115,
        counted=4 * (7 + 8 + 7),
    )


def test_a_plain_models_arrays_are_weights_buffers_too() -> None:
    model: Arrays = [
        np.ones((3, 4), np.float32),
        f32(0, 2),
        np.array(3, np.int64),
        np.ones(2, np.bool_),
    ]
    # Whole numbers are no floats, and are not counted.
    assert parts(npy(*model)) == {"weights": 48 + 8 + 8 + 2, "counted": 4 * 13}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_float_counts_as_four_bytes_whatever_its_type(dtype: str) -> None:
    array = np.array([0.0, -0.0, 1.0, -2.0, 0.5], dtype)
    assert parts(npy(array)) == {"weights": 5 * array.itemsize, "counted": 12}


def test_csr_is_values_and_indices() -> None:
    layer = SparseArray.from_dense(sparse_layer())
    payload = encode([Entry("a", layer), Entry("b", f32(1, 0))])
    # Columns below 100 and 5 positions take a byte each; 9 pointers.
    assert parts(npy(*payload)) == {"weights": 20 + 8, "indices": 5 + 9, "counted": 4 * 6}


def test_values_at_known_positions_are_weights_and_what_stays_is_nothing() -> None:
    entries = [
        Entry("a", Values((3, 4), f32(1, 2, 0)), "difference"),
        Entry("n", NotSent((), np.dtype("int64"))),
        Entry("b", f32(3)),
    ]
    assert parts(npy(*encode(entries))) == {"weights": 16, "counted": 12}


def test_sparse_activations_and_gradients_have_indices() -> None:
    values = np.zeros((4, 600), np.float32)
    values[:, 500:504] = 2
    for name, tensors, labels in (
        ("activations", activations(values), {"labels": 4}),
        ("gradients", gradients(values), {}),
    ):
        # Columns below 600 take two bytes each; 16 positions, and 5 pointers of one byte.
        expected = {name: 64, "indices": 2 * 16 + 5, "counted": 64, **labels}
        assert parts(tensors) == expected


def test_halved_activations_are_half_the_bytes_and_count_as_much() -> None:
    tensors = activations(np.ones((3, 5), np.float32), "float16")
    assert parts(tensors) == {"activations": 30, "labels": 3, "counted": 60}


def test_a_models_layers_may_be_called_what_they_like() -> None:
    names = ("activations", "labels", "gradients", "batch-ids")
    payload = encode([Entry(name, f32(1, 1)) for name in names])
    assert parts(npy(*payload)) == {"weights": 32, "counted": 32}


def test_what_cannot_be_read_is_protocol() -> None:
    pickled = BytesIO()
    np.save(pickled, np.array([None]), allow_pickle=True)
    short = npy(f32(1, 2))[0][:-1]
    assert parts([b"", b"garbage", pickled.getvalue(), short]) == {}
    assert parts([b"garbage", *npy(f32(1, 2)), short]) == {"weights": 8, "counted": 8}


def test_a_payload_that_is_incomplete_is_protocol_to_the_end() -> None:
    [header, *rest] = gradients(np.ones((2, 4), np.float32))
    plain = npy(f32(1, 2))
    assert parts([header, *rest, *plain]) == {"gradients": 32, "weights": 8, "counted": 40}
    assert parts([*plain, header, *rest[:-1]]) == {"weights": 8, "counted": 8}
    later = npy(np.frombuffer(b'{"magic":"lean-flwr","protocol":2}', np.uint8))
    assert parts([*plain, *later, *plain]) == {"weights": 8, "counted": 8}
    # An array that is not the header's is what it is called; one that cannot be read is nothing.
    assert parts([header, b"garbage", *rest[1:]]) == {}


def test_a_message_without_arrays_is_protocol() -> None:
    assert break_down([], 12) == replace(NO_BYTES, protocol=12)
    assert tuple(NO_BYTES.by_category()) == CATEGORIES


def test_measuring_copies_nothing_and_leaves_the_message() -> None:
    tensors = [*activations(np.ones((2, 3), np.float32)), b"garbage"]
    before = [bytes(bytearray(tensor)) for tensor in tensors]
    break_down(tensors, 10_000)
    assert tensors == before


SMALL_FLOATS = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e-30])
DTYPES = st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "float16"])


@st.composite
def some_arrays(draw: st.DrawFn) -> NDArray[Any]:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    array: NDArray[Any] = np.zeros(shape, draw(DTYPES))
    fill = st.lists(SMALL_FLOATS, min_size=array.size, max_size=array.size)
    if array.dtype.kind == "f":
        array[...] = np.reshape(draw(fill), shape)
    return array


@st.composite
def entries_of_a_model(draw: st.DrawFn) -> Bytes:
    """A payload of weights: dense, CSR, values and absent layers."""
    entries = []
    for position in range(draw(st.integers(0, 4))):
        array = draw(some_arrays())
        data: Any = array
        kind = draw(st.sampled_from(["dense", "csr", "values", "absent"]))
        if kind == "csr" and array.dtype.kind == "f":
            data = SparseArray.from_dense(array)
        elif kind == "values":
            data = Values(array.shape, array.reshape(-1)[: draw(st.integers(0, array.size))])
        elif kind == "absent":
            data = NotSent(array.shape, array.dtype)
        entries.append(Entry(f"layer{position}", data))
    return npy(*encode(entries, force_csr=draw(st.booleans())))


@st.composite
def batches(draw: st.DrawFn) -> Bytes:
    values = draw(st.lists(st.lists(SMALL_FLOATS, min_size=3, max_size=3), min_size=1, max_size=5))
    array = np.array(values, np.float32)
    return activations(array) if draw(st.booleans()) else gradients(array)


@st.composite
def garbage(draw: st.DrawFn) -> Bytes:
    """Bytes of any kind, or arrays cut short or with one byte changed."""
    if draw(st.booleans()):
        return [draw(st.binary(max_size=40))]
    [*tensors] = draw(st.one_of(batches(), entries_of_a_model()))
    position = draw(st.integers(0, len(tensors) - 1))
    data = bytearray(tensors[position])
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data) - 1)) :]
    elif draw(st.booleans()):
        del tensors[position]
        return tensors
    else:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    tensors[position] = bytes(data)
    return tensors


MESSAGES = st.lists(
    st.one_of(entries_of_a_model(), batches(), garbage(), some_arrays().map(npy)), max_size=4
).map(lambda several: [tensor for tensors in several for tensor in tensors])


@given(MESSAGES)
def test_categories_of_any_message_add_up_to_its_bytes(tensors: Bytes) -> None:
    parameters = Parameters(tensors, "numpy.ndarray")
    down, up = FitIns(parameters, {"rate": 0.5}), FitRes(OK, parameters, 3, {"train_loss": 0.5})
    meter = Meter()
    meter.sent(1, down)
    meter.received(1, up)
    traffic = meter.of(1)
    assert sum(traffic.down.by_category().values()) == message_bytes(down) == traffic.downlink_bytes
    assert sum(traffic.up.by_category().values()) == message_bytes(up) == traffic.uplink_bytes
    assert min(vars(traffic.down).values()) >= 0
    assert traffic.down.counted == traffic.up.counted
    assert replace(traffic.down, protocol=0) == replace(traffic.up, protocol=0)


@given(st.lists(some_arrays(), max_size=4), st.lists(batches(), max_size=2))
def test_of_well_formed_messages_every_array_has_its_category(
    model: Arrays, payloads: list[Bytes]
) -> None:
    # A second source: the arrays before they became bytes. A header of JSON is never among these,
    # as it would need an array of uint8 that is not all zeros.
    tensors = [*npy(*model), *(tensor for payload in payloads for tensor in payload)]
    found = break_down(tensors, 10**6)
    floats = [array for array in model if array.dtype.kind == "f"]
    assert found.weights == sum(array.nbytes for array in model)
    assert found.counted >= 4 * sum(np.count_nonzero(array) for array in floats)
    assert (found.activations + found.gradients > 0) == bool(payloads)
