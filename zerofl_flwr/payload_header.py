"""The JSON header that makes a payload self-describing, and how it is checked when it comes."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.npy import MAX_DIMENSIONS
from zerofl_flwr.payload_entries import Content, MetaValue

MAGIC = "lean-flwr"
PROTOCOL_VERSION = 1
MAX_HEADER_BYTES = 16 * 2**20
MAX_NAME_LENGTH = 256
CONTENTS: tuple[Content, ...] = ("weights", "difference")
# How many arrays follow the header for a layer of each encoding.
ARRAY_COUNTS = {"dense": 1, "csr": 3, "values": 1, "absent": 0}
WIRE_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_KEYS = {"magic", "protocol", "meta", "layers"}
_LAYER_KEYS = frozenset({"name", "shape", "dtype", "encoding", "content"})
_KNOWN_TEXTS = {"dtype": WIRE_DTYPES, "encoding": tuple(ARRAY_COUNTS), "content": CONTENTS}
_EXTRA_KEYS = {"csr": {"nnz"}, "dense": {"sparse"}}
# Quotes what came in errors: bounded in length and depth, however large or nested it is.
_quote = reprlib.Repr()
_quote.maxstring = 80
_short = _quote.repr


@dataclass(frozen=True)
class LayerHeader:
    """One layer as the header describes it; every field has the right type and range.

    `nnz` is the number of stored positions of a ``csr`` layer. `sparse` says of a ``dense`` layer
    that it stands for a sparse one, zero-filled. Both are None for the other encodings.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    encoding: str
    content: Content
    nnz: int | None = None
    sparse: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that travel, in their fixed order."""
        fields = {**asdict(self), "shape": list(self.shape)}
        return {key: value for key, value in fields.items() if value is not None}


def write_header(layers: Sequence[LayerHeader], meta: Mapping[str, MetaValue]) -> NDArray[np.uint8]:
    """Write the header as a 1-D uint8 array of UTF-8 JSON.

    Raises
    ------
    PayloadError
        A layer or `meta` would be refused by the receiver.
    """
    header = {
        "magic": MAGIC,
        "protocol": PROTOCOL_VERSION,
        "meta": dict(meta),
        "layers": [layer.to_json() for layer in layers],
    }
    _read_layers(header["layers"], sender=None)
    _read_meta(header["meta"], sender=None)
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise PayloadError(
            f"{len(text)} bytes exceed the limit of {MAX_HEADER_BYTES}", field="header"
        )
    return np.frombuffer(text, np.uint8)


def has_magic(array: NDArray[Any]) -> bool:
    """Say whether `array` is a header of this format, of whatever protocol version."""
    try:
        return _parse(array, sender=None).get("magic") == MAGIC
    except PayloadError:
        return False


def read_header(
    array: NDArray[Any], *, sender: str | None
) -> tuple[list[LayerHeader], dict[str, MetaValue]]:
    """Read a header, checking the type and range of each field.

    Parameters
    ----------
    array : NDArray
        The first array of a payload; has to be 1-D uint8 with at most 16 MiB.
    sender : str or None
        Who sent it, for the error.

    Returns
    -------
    tuple of list of LayerHeader and dict
        The layers in order, and the meta scalars.

    Raises
    ------
    PayloadError
        Naming the sender, the layer (by position until its name is known good) and the field.
    """
    header = _parse(array, sender)
    if header.get("magic") != MAGIC:
        raise PayloadError(
            f"{MAGIC!r} expected, {_short(header.get('magic'))} came", sender=sender, field="magic"
        )
    protocol = header.get("protocol")
    if type(protocol) is not int or protocol != PROTOCOL_VERSION:
        raise PayloadError(
            f"version {_short(protocol)} came, this side speaks version {PROTOCOL_VERSION}",
            sender=sender,
            field="protocol",
        )
    if header.keys() != _KEYS:
        raise PayloadError(
            f"fields {sorted(_KEYS)} expected, {_short(sorted(header))} came",
            sender=sender,
            field="header",
        )
    return _read_layers(header["layers"], sender), _read_meta(header["meta"], sender)


def _parse(array: NDArray[Any], sender: str | None) -> dict[str, Any]:
    def refuse(reason: str) -> PayloadError:
        return PayloadError(reason, sender=sender, field="header")

    if array.dtype != np.uint8 or array.ndim != 1:
        raise refuse(f"a 1-D uint8 array expected, {array.ndim}-D {array.dtype} came")
    if array.size > MAX_HEADER_BYTES:
        raise refuse(f"{array.size} bytes exceed the limit of {MAX_HEADER_BYTES}")
    try:
        header = json.loads(
            array.tobytes().decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_keys,
        )
    except (ValueError, RecursionError) as error:
        raise refuse(f"not readable as JSON ({_short(str(error))})") from error
    if not isinstance(header, dict):
        raise refuse(f"a JSON object expected, a {type(header).__name__} came")
    return header


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _read_layers(raw: object, sender: str | None) -> list[LayerHeader]:
    if not isinstance(raw, list):
        raise PayloadError("a list expected", sender=sender, field="layers")
    layers = [_read_layer(item, index, sender) for index, item in enumerate(raw)]
    seen: set[str] = set()
    for layer in layers:
        if layer.name in seen:
            raise PayloadError(
                "the name occurs twice", sender=sender, layer=layer.name, field="name"
            )
        seen.add(layer.name)
    return layers


def _read_layer(raw: object, index: int, sender: str | None) -> LayerHeader:
    layer = f"#{index}"

    def refuse(field: str, reason: str) -> PayloadError:
        return PayloadError(reason, sender=sender, layer=layer, field=field)

    if not isinstance(raw, dict):
        raise refuse("layers", f"a JSON object expected, a {type(raw).__name__} came")
    fields: dict[str, Any] = raw
    name = fields.get("name")
    if not _is_name(name):
        raise refuse("name", f"1 to {MAX_NAME_LENGTH} printable characters expected")
    layer = str(name)
    for field, known in _KNOWN_TEXTS.items():
        text = fields.get(field)
        if not isinstance(text, str) or text not in known:
            raise refuse(field, f"one of {', '.join(known)} expected, {_short(text)} came")
    shape = fields.get("shape")
    if not isinstance(shape, list) or not _is_shape(shape):
        raise refuse("shape", f"a list of sizes expected, {_short(shape)} came")
    encoding = fields["encoding"]
    keys = _LAYER_KEYS | _EXTRA_KEYS.get(encoding, set())
    if fields.keys() != keys:
        raise refuse("layers", f"fields {sorted(keys)} expected, {_short(sorted(fields))} came")
    nnz, numel = fields.get("nnz"), math.prod(shape)
    if encoding == "csr" and (type(nnz) is not int or not 0 <= nnz <= numel):
        raise refuse("nnz", f"0 to {numel} expected, {_short(nnz)} came")
    if encoding == "dense" and type(fields["sparse"]) is not bool:
        raise refuse("sparse", f"true or false expected, {_short(fields['sparse'])} came")
    return LayerHeader(**{**fields, "shape": tuple(shape)})


def _read_meta(raw: object, sender: str | None) -> dict[str, MetaValue]:
    if not isinstance(raw, dict):
        raise PayloadError("a JSON object expected", sender=sender, field="meta")
    for key, value in raw.items():
        if not _is_name(key):
            raise PayloadError(
                f"keys have 1 to {MAX_NAME_LENGTH} printable characters",
                sender=sender,
                field="meta",
            )
        if not _is_meta_value(value):
            raise PayloadError(
                f"{key!r} must be a str, bool, finite float or 64-bit int, not {_short(value)}",
                sender=sender,
                field="meta",
            )
    return raw


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH and value.isprintable()


def _is_shape(sizes: list[Any]) -> bool:
    # The bound leaves room for the bytes; zeros are skipped, since they would hide huge sizes.
    return (
        len(sizes) <= MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size < 2**56 for size in sizes)
        and math.prod(size for size in sizes if size) < 2**56
    )


def _is_meta_value(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):  # bool included
        return -(2**63) <= value < 2**63
    return isinstance(value, str)
