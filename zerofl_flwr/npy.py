"""Reading ``.npy`` bytes that came from another machine, without trusting their header.

And how many bytes an array will take that goes there.
"""

from __future__ import annotations

import math
import re
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError

MAX_DIMENSIONS = 32
_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 4096
# Major version of the format -> width of the little-endian header length that follows it.
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_HEADER = re.compile(
    r"\{ *'descr': *'([<>|=]?[A-Za-z][0-9]{0,3})', *'fortran_order': *(True|False),"
    r" *'shape': *\(([0-9, ]*)\) *,? *\} *\n?"
)


def read_npy(data: bytes) -> NDArray[Any]:
    """View ``.npy`` bytes, such as one of Flower's tensors, as a read-only array.

    The header is matched against the one form that ``np.save`` writes for plain arrays; it is
    never evaluated, and no object is ever unpickled. The byte length has to be exactly that of
    header and values before anything is allocated.

    Parameters
    ----------
    data : bytes
        The whole ``.npy`` file.

    Returns
    -------
    NDArray
        bool, integer, float or complex array of the header's shape and memory order. It shares
        the memory of `data`, unless a crooked header length left the values unaligned.

    Raises
    ------
    PayloadError
        The magic, version, header, dtype, shape or length is wrong.
    """
    header, offset = _split_header(data)
    match = _HEADER.fullmatch(header)
    if match is None:
        raise PayloadError(f"the .npy header {_short(header)} is not that of a plain array")
    dtype = _parse_dtype(match[1])
    shape = _parse_shape(match[3])
    numel = math.prod(shape)
    needed = offset + numel * dtype.itemsize
    if len(data) != needed:
        raise PayloadError(
            f"a {dtype} array of shape {_short(str(shape))} takes {needed:.6g} bytes "
            f"of .npy, {len(data)} bytes came"
        )
    flat = np.frombuffer(data, dtype, numel, offset) if numel else np.empty(0, dtype)
    if not flat.flags.aligned:
        flat = flat.copy()
    try:
        array = flat.reshape(shape, order="F" if match[2] == "True" else "C")
    except ValueError as error:  # no elements, yet a size beyond the address space
        raise PayloadError(f"shape {_short(str(shape))} is too big") from error
    array.flags.writeable = False
    return array


def npy_nbytes(array: NDArray[Any]) -> int:
    """Return how many bytes ``np.save`` makes of a C-contiguous array, without reading its data."""
    header = BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": False,
        "shape": array.shape,
    }
    np.lib.format.write_array_header_1_0(header, described)
    return header.tell() + array.nbytes


def _split_header(data: bytes) -> tuple[str, int]:
    """Return the header's text and the offset of the first value."""
    if not data.startswith(_MAGIC) or len(data) < 12:
        raise PayloadError(f"{len(data)} bytes came that do not start as a .npy file")
    major, minor = data[6], data[7]
    if major not in _LENGTH_BYTES or minor != 0:
        raise PayloadError(f".npy version {major}.{minor} came; 1.0, 2.0 and 3.0 are known")
    start = 8 + _LENGTH_BYTES[major]
    length = int.from_bytes(data[8:start], "little")
    if length > _MAX_HEADER_BYTES or start + length > len(data):
        raise PayloadError(
            f"the .npy header claims {length} bytes; at most "
            f"{min(_MAX_HEADER_BYTES, len(data) - start)} are possible"
        )
    return data[start : start + length].decode("latin-1"), start + length


def _parse_dtype(text: str) -> np.dtype[Any]:
    if text.lstrip("<>|=")[0] not in "biufc":
        raise PayloadError(f"the .npy dtype {text!r} is refused: only numbers and bool are read")
    try:
        return np.dtype(text)
    except TypeError as error:
        raise PayloadError(f"the .npy dtype {text!r} is unknown") from error


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts[-1] == "":
        parts.pop()
    # Eighteen digits are below 2**63, and cap the work of the product.
    if len(parts) > MAX_DIMENSIONS or not all(re.fullmatch("[0-9]{1,18}", p) for p in parts):
        raise PayloadError(f"the .npy shape ({_short(text)}) is not a shape")
    return tuple(int(part) for part in parts)


def _short(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "...")
