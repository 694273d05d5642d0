"""Weights of the client's parts and of the server part on the wire, and what is refused."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from adasplit_flwr.weights_payload import (
    decode_server_part,
    decode_weights,
    encode_server_part,
    encode_weights,
    load_named,
    named_arrays,
    named_specs,
)
from tests.adasplit_flwr.small_clients import bits, same_arrays, small_split
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import Entry, NotSent, SparseArray, TensorSpec, decode, encode

Parts = dict[str, nn.Module]


def parts_of(seed: int = 11, cut: int = 4) -> Parts:
    split = small_split(seed)
    if cut != 4:
        split.client = split.client[:cut]  # type: ignore[index]
    return {"client": split.client, "head": split.head}


NAMES = [
    "client.0.weight",
    "client.0.bias",
    "client.1.weight",
    "client.1.bias",
    "client.1.running_mean",
    "client.1.running_var",
    "client.1.num_batches_tracked",
    "head.hidden.weight",
    "head.hidden.bias",
    "head.projection.weight",
    "head.projection.bias",
]
COUNTER = "client.1.num_batches_tracked"


def npy(array: NDArray[Any]) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_the_payload_names_all_arrays_and_announces_the_counter_only() -> None:
    arrays = encode_weights(named_arrays(parts_of()), server_round=3)
    payload = decode(arrays, None, sender="server")
    assert [entry.name for entry in payload.entries] == NAMES
    assert payload.meta == {"round": 3}
    absent = [entry.name for entry in payload.entries if isinstance(entry.data, NotSent)]
    assert absent == [COUNTER]
    assert len(arrays) == len(NAMES)  # a header for the counter
    assert arrays[1].shape == (4, 1, 3, 3)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_weights_arrive_as_they_were_sent_and_the_counter_stays(as_bytes: bool) -> None:
    sent, receiver = parts_of(), parts_of(99)
    receiver["client"].get_buffer("1.num_batches_tracked").fill_(5)
    sent["client"].get_buffer("1.num_batches_tracked").fill_(8)
    arrays = encode_weights(named_arrays(sent), server_round=3)
    wire = [npy(array) for array in arrays] if as_bytes else arrays
    came = decode_weights(wire, named_specs(receiver), server_round=3)
    assert list(came) == [name for name in NAMES if name != COUNTER]
    load_named(receiver, came, sender="server")
    expected = named_arrays(sent) | {COUNTER: np.array(5)}
    assert same_arrays(named_arrays(receiver), expected)


def test_the_server_part_is_sent_whole() -> None:
    server = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    server[0].get_buffer("num_batches_tracked").fill_(4)
    arrays = encode_server_part(server.state_dict(), server_round=0)
    specs = named_specs({"server": server})
    came = decode_server_part(arrays, specs, server_round=0)
    assert bits(came) == bits(named_arrays({"server": server}))
    assert came["server.0.num_batches_tracked"] == 4
    again: Parts = {"server": nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).double()}
    load_named(again, came, sender="server")
    assert same_arrays(named_arrays(again), came)


def test_arrays_have_the_names_of_their_parts() -> None:
    arrays, specs = named_arrays(parts_of()), named_specs(parts_of())
    assert list(arrays) == list(specs) == NAMES
    assert specs["client.0.weight"] == TensorSpec((4, 1, 3, 3), np.dtype("float32"))
    assert specs[COUNTER] == TensorSpec((), np.dtype("int64"))
    parts = parts_of()
    copied = named_arrays(parts)
    copied["client.0.weight"][:] = 0
    assert same_arrays(named_arrays(parts), arrays)


def entries_of(parts: Parts) -> list[Entry]:
    return [
        Entry(name, NotSent((), np.dtype("int64")) if name == COUNTER else array)
        for name, array in named_arrays(parts).items()
    ]


def altered(position: int, entry: Entry) -> list[Entry]:
    entries = entries_of(parts_of())
    entries[position] = entry
    return entries


FIRST = np.zeros((4, 1, 3, 3), np.float32)
NAN = FIRST.copy()
NAN[0, 0, 1, 1] = math.nan
SPARSE = SparseArray.from_dense(FIRST)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], r"client 3, layer client\.0\.weight, field name: .the payload's end. came in its"),
        (entries_of(parts_of())[:-1], r"layer head\.projection\.bias, field name: .the payload's"),
        (
            [*entries_of(parts_of()), Entry("head.more", FIRST)],
            r"layer head\.more, field name: the model has no such array, of 12 that came",
        ),
        (
            entries_of(parts_of(cut=1)),
            r"layer client\.1\.weight, .*: 'head\.hidden\.weight' came .* is the network cut else",
        ),
        (altered(0, Entry("client.0.bias2", FIRST)), r"layer client\.0\.weight, field name"),
        (altered(0, Entry("client.0.weight", FIRST[:2])), r"layer client\.0\.weight, field shape"),
        (
            altered(0, Entry("client.0.weight", FIRST.astype(np.float64))),
            r"layer client\.0\.weight, field dtype: float32 expected, float64 came",
        ),
        (altered(0, Entry("client.0.weight", NAN)), r"0\.weight, field data: 1 values are not fin"),
        (altered(0, Entry("client.0.weight", FIRST, "difference")), r"field content: weights exp"),
        (altered(0, Entry("client.0.weight", SPARSE)), r"field encoding: dense expected, Sparse"),
        (
            altered(0, Entry("client.0.weight", NotSent(FIRST.shape, FIRST.dtype))),
            r"0\.weight, field encoding: dense expected, NotSent came",
        ),
        (
            altered(6, Entry(COUNTER, np.array(3))),
            r"num_batches_tracked, field encoding: an array that is not of floats was sent",
        ),
    ],
    ids=[
        "nothing",
        "too few",
        "too many",
        "another cut",
        "another name",
        "shape",
        "dtype",
        "NaN",
        "difference",
        "sparse",
        "absent",
        "counter",
    ],
)
def test_weights_of_something_else_are_refused_by_name(entries: list[Entry], message: str) -> None:
    arrays = encode(entries, {"round": 3}, force_csr=True)
    with pytest.raises(PayloadError, match=message):
        decode_weights(arrays, named_specs(parts_of()), server_round=3, sender="client 3")


@pytest.mark.parametrize("meta", [{}, {"round": 2}, {"round": 3.0}, {"round": True}])
def test_another_round_is_refused(meta: dict[str, Any]) -> None:
    arrays = encode(entries_of(parts_of()), meta)
    with pytest.raises(PayloadError, match=r"server, field round: round 3 expected, .* came"):
        decode_weights(arrays, named_specs(parts_of()), server_round=3)
    server = nn.Linear(2, 2)
    sent = encode_server_part(server.state_dict(), server_round=2)
    with pytest.raises(PayloadError, match="field round: round 3 expected, 2 came"):
        decode_server_part(sent, named_specs({"server": server}), server_round=3)


def test_what_is_no_payload_or_too_big_is_refused() -> None:
    specs = named_specs(parts_of())
    arrays = encode_weights(named_arrays(parts_of()), server_round=3)
    with pytest.raises(PayloadError, match="server, field header: an empty list came"):
        decode_weights([], specs, server_round=3)
    with pytest.raises(PayloadError, match="server, field header"):
        decode_weights([np.zeros(3, np.float32)], specs, server_round=3)
    with pytest.raises(PayloadError, match=r"server, field header: 2 bytes came that do not start"):
        decode_weights([b"no"], specs, server_round=3)
    with pytest.raises(PayloadError, match="the header announces 10 arrays, 9 came"):
        decode_weights(arrays[:-1], specs, server_round=3)
    big = [arrays[0], np.zeros(10**6), *arrays[2:]]
    with pytest.raises(PayloadError, match=r"bytes came, at most \d+ are accepted"):
        decode_weights(big, specs, server_round=3)


def test_a_server_part_must_be_sent_whole() -> None:
    server: Parts = {"server": nn.BatchNorm1d(3)}
    arrays = encode_weights(named_arrays(server), server_round=3)
    message = r"layer server\.num_batches_tracked, field encoding: dense expected, NotSent came"
    with pytest.raises(PayloadError, match=message):
        decode_server_part(arrays, named_specs(server), server_round=3)


def test_half_floats_that_numpy_lacks_are_refused() -> None:
    parts: Parts = {"client": nn.Linear(2, 2).to(torch.bfloat16)}
    with pytest.raises(PayloadError, match="bfloat16 has no numpy type"):
        named_arrays(parts)
