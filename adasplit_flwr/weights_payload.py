"""Weights of AdaSplit's parts (arXiv 2112.01637) on the wire: client part and head, server part.

Two payloads (:mod:`zerofl_flwr.payload`), both with the meta scalar ``round``:

============  =====================================================================================
client's      every array of the state_dicts of client part and head, as ``client.<key>`` and
              ``head.<key>``; arrays that are not floats, such as BatchNorm's counters, stay where
              they are and are announced only
server part   every array of the state_dict, as ``server.<key>``; all are sent
============  =====================================================================================

>>> from torch import nn
>>> parts = {"client": nn.Linear(2, 3), "head": nn.Linear(3, 4)}
>>> arrays = encode_weights(named_arrays(parts), server_round=1)
>>> came = decode_weights(arrays, named_specs(parts), server_round=1)
>>> list(came)
['client.weight', 'client.bias', 'head.weight', 'head.bias']
>>> load_named(parts, came, sender="server")
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, get_specs, set_arrays
from zerofl_flwr.payload import (
    Entry,
    NotSent,
    Payload,
    TensorSpec,
    WireArray,
    decode,
    encode,
    read_npy,
)
from zerofl_flwr.payload_header import read_header

CLIENT, HEAD, SERVER = "client", "head", "server"
_HEADER_BYTES = 8192
_ENTRY_OVERHEAD_BYTES = 4096  # its part of the header, and the .npy header where it comes as one

Parts = Mapping[str, nn.Module]


def named_arrays(parts: Parts) -> dict[str, Array]:
    """Copy the state of parts into arrays.

    Parameters
    ----------
    parts : mapping of str to nn.Module
        Such as ``{"client": ..., "head": ...}``.

    Returns
    -------
    dict of str to ndarray
        By ``<part>.<key>``, in the order of the parts' state_dicts.

    Raises
    ------
    PayloadError
        If a tensor has a type that numpy lacks, such as bfloat16.
    """
    return {
        f"{part}.{key}": array
        for part, module in parts.items()
        for key, array in zip(array_names(module), get_arrays(module), strict=True)
    }


def named_specs(parts: Parts) -> dict[str, TensorSpec]:
    """Return shape and dtype of each array of :func:`named_arrays`, without copying anything.

    Raises
    ------
    PayloadError
        As :func:`named_arrays`.
    """
    return {
        f"{part}.{key}": spec
        for part, module in parts.items()
        for key, spec in zip(array_names(module), get_specs(module), strict=True)
    }


def load_named(parts: Parts, arrays: Mapping[str, Array], *, sender: str) -> None:
    """Load arrays into the parts; what is not among them stays as it is.

    Parameters
    ----------
    parts : mapping of str to nn.Module
        As in :func:`named_arrays`.
    arrays : mapping of str to ndarray
        Of the parts' names, shapes and dtypes, as :func:`decode_weights` returns them.
    sender : str
        Whose they are, for the error.

    Raises
    ------
    PayloadError
        If a shape or a dtype is not the part's.
    """
    all_arrays = named_arrays(parts) | dict(arrays)
    for part, module in parts.items():
        set_arrays(module, [all_arrays[f"{part}.{k}"] for k in array_names(module)], sender=sender)


def encode_weights(weights: Mapping[str, Array], *, server_round: int) -> list[Array]:
    """Encode a client part and its head.

    Parameters
    ----------
    weights : mapping of str to ndarray
        As :func:`named_arrays` returns them. What is not a float array is not sent.
    server_round : int
        Flower's round.

    Returns
    -------
    list of ndarray
        A payload.
    """
    entries = [
        Entry(name, array if _travels(array.dtype) else NotSent(array.shape, array.dtype))
        for name, array in weights.items()
    ]
    return encode(entries, {"round": server_round})


def decode_weights(
    arrays: Sequence[WireArray],
    expected: Mapping[str, TensorSpec],
    *,
    server_round: int,
    sender: str = "server",
) -> dict[str, Array]:
    """Check and decode what :func:`encode_weights` wrote.

    Parameters
    ----------
    arrays : sequence of NDArray or bytes
        What came, each as an array or as the ``.npy`` bytes of one.
    expected : mapping of str to TensorSpec
        As :func:`named_specs` of the receiver's parts.
    server_round : int
        The round it has to be of.
    sender : str
        Who sent it, e.g. ``"client 3"``.

    Returns
    -------
    dict of str to ndarray
        The float arrays, by name; they may be read-only.

    Raises
    ------
    PayloadError
        Naming the sender, the entry and the field at fault: it cannot be decoded, is of another
        round or another cut, holds NaN or infinity, or sends what should stay.
    """
    payload = _decode(arrays, expected, server_round, sender)
    came: dict[str, Array] = {}
    for entry in payload.entries:
        if _travels(expected[entry.name].dtype):
            came[entry.name] = _dense(entry, sender)
        elif not isinstance(entry.data, NotSent):
            raise PayloadError(
                "an array that is not of floats was sent; it should stay where it is",
                sender=sender,
                layer=entry.name,
                field="encoding",
            )
    return came


def encode_server_part(state: Mapping[str, torch.Tensor], *, server_round: int) -> list[Array]:
    """Encode the server part that one client tests with.

    Parameters
    ----------
    state : mapping of str to Tensor
        A state_dict of the server part, on any device, as
        :meth:`adasplit_flwr.masked_server.MaskedServer.submodel` returns it.
    server_round : int
        Flower's round.

    Returns
    -------
    list of ndarray
        A payload.
    """
    entries = [
        Entry(f"{SERVER}.{key}", tensor.detach().cpu().numpy()) for key, tensor in state.items()
    ]
    return encode(entries, {"round": server_round})


def decode_server_part(
    arrays: Sequence[WireArray],
    expected: Mapping[str, TensorSpec],
    *,
    server_round: int,
    sender: str = "server",
) -> dict[str, Array]:
    """Check and decode what :func:`encode_server_part` wrote.

    Parameters
    ----------
    arrays, server_round, sender
        As :func:`decode_weights`.
    expected : mapping of str to TensorSpec
        As :func:`named_specs` of ``{"server": ...}``.

    Returns
    -------
    dict of str to ndarray
        All arrays, by name; they may be read-only.

    Raises
    ------
    PayloadError
        As :func:`decode_weights`; and if an array was not sent.
    """
    payload = _decode(arrays, expected, server_round, sender)
    return {entry.name: _dense(entry, sender) for entry in payload.entries}


def _travels(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind == "f"


def _decode(
    arrays: Sequence[WireArray],
    expected: Mapping[str, TensorSpec],
    server_round: int,
    sender: str,
) -> Payload:
    # Names before anything else: those of another cut say best what is wrong.
    if arrays:
        _check_names(_names_in(arrays[0], sender), list(expected), sender)
    data_bytes = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in expected.values())
    limit = data_bytes + len(expected) * _ENTRY_OVERHEAD_BYTES + _HEADER_BYTES
    payload = decode(arrays, list(expected.values()), sender=sender, max_bytes=limit)
    came = payload.meta.get("round")
    if type(came) is not int or came != server_round:
        reason = f"round {server_round} expected, {reprlib.repr(came)} came"
        raise PayloadError(reason, sender=sender, field="round")
    for entry in payload.entries:
        if entry.content != "weights":
            reason = f"weights expected, {entry.content} came"
            raise PayloadError(reason, sender=sender, layer=entry.name, field="content")
    return payload


def _names_in(header: WireArray, sender: str) -> list[str]:
    try:
        array = read_npy(header) if isinstance(header, bytes) else header
    except PayloadError as error:
        raise PayloadError(error.reason, sender=sender, field="header") from error
    return [layer.name for layer in read_header(array, sender=sender)[0]]


def _check_names(came: list[str], known: list[str], sender: str) -> None:
    for position, name in enumerate(known):
        if position == len(came) or came[position] != name:
            found = came[position] if position < len(came) else "the payload's end"
            reason = (
                f"{reprlib.repr(found)} came in its place; is the network cut elsewhere, or of "
                "another kind?"
            )
            raise PayloadError(reason, sender=sender, layer=name, field="name")
    if len(came) > len(known):
        reason = f"the model has no such array, of {len(came)} that came"
        raise PayloadError(reason, sender=sender, layer=came[len(known)], field="name")


def _dense(entry: Entry, sender: str) -> Array:
    if isinstance(entry.data, np.ndarray):
        return entry.data
    reason = f"dense expected, {type(entry.data).__name__} came"
    raise PayloadError(reason, sender=sender, layer=entry.name, field="encoding")
