"""Replies with one fault each, made from an honest one, and what an error has to say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.common import FitRes, Parameters, ndarrays_to_parameters
from numpy.typing import NDArray

from zerofl_flwr.payload import (
    Entry,
    MetaValue,
    NotSent,
    SparseArray,
    Values,
    decode,
    encode,
    read_npy,
)
from zerofl_flwr.payload_header import ARRAY_COUNTS, read_header

Array = NDArray[Any]
Change = Callable[[dict[str, Entry], dict[str, MetaValue]], object]


@dataclass(frozen=True)
class Fault:
    """How to spoil a reply, and the field and layer that its refusal must name."""

    field: str
    layer: str | None
    spoil: Callable[[FitRes], FitRes]


def rewritten(change: Change) -> Callable[[FitRes], FitRes]:
    """Decode a reply, change its entries or meta scalars in place, and encode it again."""

    def spoil(result: FitRes) -> FitRes:
        tensors = result.parameters.tensors
        sizes = _value_counts(tensors)
        payload = decode(tensors, None, sender="test", pattern_sizes=sizes)
        entries = {entry.name: entry for entry in payload.entries}
        meta = dict(payload.meta)
        change(entries, meta)
        return with_tensors(result, ndarrays_to_parameters(encode(list(entries.values()), meta)))

    return spoil


def with_tensors(result: FitRes, parameters: Parameters) -> FitRes:
    return FitRes(result.status, parameters, result.num_examples, result.metrics)


def _value_counts(tensors: Sequence[bytes]) -> dict[int, int]:
    """Return how many values a reply holds at each frozen position."""
    layers, _ = read_header(read_npy(tensors[0]), sender="test")
    counts, index = {}, 1
    for position, layer in enumerate(layers):
        if layer.encoding == "values":
            counts[position] = read_npy(tensors[index]).size
        index += ARRAY_COUNTS[layer.encoding]
    return counts


def put(name: str, make: Callable[[Entry], Entry]) -> Callable[[FitRes], FitRes]:
    """Replace one entry."""

    def change(entries: dict[str, Entry], _: dict[str, MetaValue]) -> None:
        entries[name] = make(entries[name])

    return rewritten(change)


def meta(**values: MetaValue | None) -> Callable[[FitRes], FitRes]:
    """Replace meta scalars; None removes one."""

    def change(_: dict[str, Entry], scalars: dict[str, MetaValue]) -> None:
        for name, value in values.items():
            scalars.pop(name, None)
            if value is not None:
                scalars[name] = value

    return rewritten(change)


def examples(count: Any) -> Callable[[FitRes], FitRes]:
    return lambda result: replace(result, num_examples=count)


def tensors(*contents: bytes) -> Callable[[FitRes], FitRes]:
    return lambda result: with_tensors(result, Parameters(list(contents), "numpy.ndarray"))


def plain_list(result: FitRes) -> FitRes:
    """Reply as a client that knows nothing of ZeroFL does."""
    return with_tensors(result, ndarrays_to_parameters([np.ones((4, 3, 3, 3), np.float32)] * 7))


def a_layer_less(result: FitRes) -> FitRes:
    return rewritten(lambda entries, _: entries.pop("fc.bias"))(result)


def cut_off(result: FitRes) -> FitRes:
    parts = result.parameters.tensors
    return with_tensors(result, Parameters([*parts[:-1], parts[-1][:-3]], "numpy.ndarray"))


def dense(entry: Entry) -> Array:
    assert isinstance(entry.data, np.ndarray)
    return entry.data.copy()


def stored(entry: Entry) -> SparseArray:
    assert isinstance(entry.data, SparseArray)
    return entry.data


def with_cell(value: float) -> Callable[[Entry], Entry]:
    def make(entry: Entry) -> Entry:
        array = dense(entry)
        array.reshape(-1)[1] = value
        return replace(entry, data=array)

    return make


def with_stored_value(value: float) -> Callable[[Entry], Entry]:
    def make(entry: Entry) -> Entry:
        data = stored(entry)
        values = data.values.copy()
        values[0] = value
        changed = SparseArray.from_indices(data.flat_indices, values, data.shape)
        return replace(entry, data=changed)

    return make


def as_values(entry: Entry) -> Entry:
    return Entry(entry.name, Values(stored(entry).shape, stored(entry).values), entry.content)


def as_whole_csr(entry: Entry) -> Entry:
    positions = np.arange(np.prod(entry.data.shape))
    values = np.ones(positions.size, np.float32)
    return Entry(entry.name, SparseArray.from_indices(positions[:9], values[:9], entry.data.shape))


def not_sent(entry: Entry) -> Entry:
    return Entry(entry.name, NotSent(entry.data.shape, np.dtype(np.float32)))


# Against a reply to round 1 under top-k-weights of the model with BatchNorm; array 4 is an integer.
FAULTS: dict[str, Fault] = {
    "NaN in a dense layer": Fault("data", "fc.bias", put("fc.bias", with_cell(np.nan))),
    "infinity in a sparse layer": Fault(
        "data", "conv.weight", put("conv.weight", with_stored_value(-np.inf))
    ),
    "wrong shape": Fault(
        "shape", "fc.bias", put("fc.bias", lambda e: replace(e, data=dense(e).reshape(1, 5)))
    ),
    "wrong dtype": Fault(
        "dtype", "fc.bias", put("fc.bias", lambda e: replace(e, data=dense(e).astype("f8")))
    ),
    "a layer less": Fault("layers", None, a_layer_less),
    "another round": Fault("round", None, meta(round=99)),
    "no round": Fault("round", None, meta(round=None)),
    "True for round 1": Fault("round", None, meta(round=True)),
    "a text for a round": Fault("round", None, meta(round="1")),
    "another rule": Fault(
        "content", "conv.weight", put("conv.weight", lambda e: replace(e, content="difference"))
    ),
    "a difference of a dense layer": Fault(
        "content", "fc.bias", put("fc.bias", lambda e: replace(e, content="difference"))
    ),
    "a float layer left out": Fault("encoding", "conv.bias", put("conv.bias", not_sent)),
    "an integer layer sent": Fault(
        "encoding",
        "bn.num_batches_tracked",
        put("bn.num_batches_tracked", lambda e: Entry(e.name, np.array(9, np.int64))),
    ),
    "values without a pattern": Fault("encoding", "fc.weight", put("fc.weight", as_values)),
    "a part of an unmasked layer": Fault(
        "encoding",
        "bn.running_var",
        put("bn.running_var", lambda e: Entry(e.name, SparseArray.from_dense(dense(e)[:4] * 0))),
    ),
    "a part of a layer that is not named": Fault("encoding", "fc.weight", meta(masked="0")),
    "no samples": Fault("num_examples", None, examples(0)),
    "negative samples": Fault("num_examples", None, examples(-5)),
    "too many samples": Fault("num_examples", None, examples(10**9 + 1)),
    "True samples": Fault("num_examples", None, examples(True)),
    "a fraction of samples": Fault("num_examples", None, examples(2.5)),
    "NaN samples": Fault("num_examples", None, examples(float("nan"))),
    "masked positions out of range": Fault("masked", None, meta(masked="0,5,7")),
    "negative masked positions": Fault("masked", None, meta(masked="0,-1,5")),
    "masked positions that are no numbers": Fault("masked", None, meta(masked="0,fc.weight")),
    "a superscript for a masked position": Fault("masked", None, meta(masked="0,\u00b2")),
    "one masked position as a number": Fault("masked", None, meta(masked=0)),
    "no masked positions": Fault("masked", None, meta(masked=None)),
    "a masked integer layer": Fault("masked", None, meta(masked="0,4,5")),
    "more bytes than the model": Fault("arrays", None, meta(note="x" * 200_000)),
    "garbage": Fault("header", None, tensors(b"\x00garbage" * 9, b"more")),
    "nothing": Fault("header", None, tensors()),
    "a plain list of arrays": Fault("header", None, plain_list),
    "a cut-off array": Fault("data", "fc.bias", cut_off),
}

# Against a reply to a frozen round under diff-on-top-k-weights.
FROZEN_FAULTS: dict[str, Fault] = {
    "CSR at a frozen pattern": Fault(
        "encoding",
        "conv.weight",
        put("conv.weight", lambda e: replace(as_whole_csr(e), content="difference")),
    ),
    "a dense layer at a frozen pattern": Fault(
        "encoding",
        "conv.weight",
        put("conv.weight", lambda e: Entry(e.name, np.zeros(e.data.shape, np.float32))),
    ),
    "weights under a rule of differences": Fault(
        "content", "conv.weight", put("conv.weight", lambda e: replace(e, content="weights"))
    ),
    "too few values": Fault(
        "data",
        "conv.weight",
        put(
            "conv.weight",
            lambda e: replace(e, data=Values(e.data.shape, np.zeros(2, np.float32))),
        ),
    ),
}
