"""Reading .npy bytes without trusting them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.npy import npy_nbytes, read_npy

DTYPES = ("bool", "int8", "int64", "uint16", "float16", "float32", "float64", "complex64", ">f4")


def to_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def raw_npy(header: str, values: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1")
    width = 2 if version[0] == 1 else 4
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text + values


def header_of(descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


@given(
    array=hnp.arrays(
        dtype=st.sampled_from(DTYPES),
        shape=hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
    ),
    fortran=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_reads_what_numpy_writes(array: NDArray[Any], fortran: bool) -> None:
    written = np.asarray(array, order="F" if fortran else "C")
    read = read_npy(to_npy(written))
    reference = np.load(io.BytesIO(to_npy(written)), allow_pickle=False)
    assert read.dtype == reference.dtype
    assert read.shape == reference.shape
    assert read.tobytes() == reference.tobytes()


def test_does_not_copy_and_cannot_be_written_to() -> None:
    data = to_npy(np.arange(1000, dtype=np.float32))
    array = read_npy(data)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert not array.flags.writeable


def test_fortran_order_is_kept() -> None:
    array = read_npy(to_npy(np.asfortranarray([[1, 2, 3], [4, 5, 6]])))
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert array.flags.f_contiguous
    assert not array.flags.c_contiguous


def test_hand_written_file_in_each_version() -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]], "<f4")
    for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        read = read_npy(raw_npy(header_of(), values.tobytes(), version))
        assert read.tolist() == values.tolist()


@pytest.mark.parametrize("padding", range(8))
def test_unaligned_values_are_copied_into_place(padding: int) -> None:
    header = header_of("'<f8'", shape="(4,)").replace("{", "{" + " " * padding)
    array = read_npy(raw_npy(header, np.arange(4, dtype="<f8").tobytes()))
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3]


GOOD = to_npy(np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes came"),
        (b"\x93NUMPY\x01\x00", "8 bytes came"),
        (b"\x93NUMPZ" + GOOD[6:], "do not start as a .npy"),
        (GOOD[:6] + b"\x04\x00" + GOOD[8:], r"version 4\.0"),
        (GOOD[:6] + b"\x01\x01" + GOOD[8:], r"version 1\.1"),
        (GOOD[:8] + b"\xff\xff" + GOOD[10:], "claims 65535 bytes"),
        (GOOD[:8] + b"\x77\x00" + GOOD[10:], "is not that of a plain array"),
        (GOOD[:60], "claims 118 bytes; at most 50"),
        (GOOD[:-1], "takes 152 bytes of .npy, 151 bytes came"),
        (GOOD + b"\0", "takes 152 bytes of .npy, 153 bytes came"),
        (raw_npy("garbage"), "is not that of a plain array"),
        (raw_npy(header_of("'|O'"), bytes(48)), r"'\|O' is refused"),
        (raw_npy(header_of("'O8'"), bytes(48)), "'O8'"),
        (raw_npy(header_of("'<U4'"), bytes(96)), "'<U4' is refused"),
        (raw_npy(header_of("'|V8'"), bytes(48)), r"'\|V8' is refused"),
        (raw_npy(header_of("'<M8'"), bytes(48)), "'<M8' is refused"),
        (raw_npy(header_of("'<f3'"), bytes(18)), "'<f3' is unknown"),
        (raw_npy(header_of("'<a4'"), bytes(24)), "'<a4' is refused"),
        (raw_npy(header_of("[('a', '<f4')]"), bytes(24)), "is not that of a plain array"),
        (raw_npy(header_of(order="0"), bytes(24)), "is not that of a plain array"),
        (raw_npy(header_of(shape="(-2, 3)"), bytes(24)), "is not that of a plain array"),
        (raw_npy(header_of(shape="(2,, 3)"), bytes(24)), "is not a shape"),
        (raw_npy(header_of(shape="(2 3)"), bytes(24)), "is not a shape"),
        (raw_npy(header_of(shape="(2.0, 3)"), bytes(24)), "is not that of a plain array"),
        (raw_npy(header_of(shape="(" + "1," * 33 + ")"), bytes(4)), "is not a shape"),
        (raw_npy(header_of(shape="(9999999999999999999,)")), "is not a shape"),
        (raw_npy(header_of(shape="(100000000000, 100000000000)")), "takes 4e[+]22 bytes"),
        (raw_npy(header_of(shape="(0, 999999999999999999, 999999999999999999)")), "too big"),
        (raw_npy("{" + "(" * 4000 + "}"), "is not that of a plain array"),
        (raw_npy(header_of() + " " * 5000, bytes(24)), "at most 4096"),
        (raw_npy("__import__('os').getcwd()"), "is not that of a plain array"),
    ],
)
def test_broken_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        read_npy(data)
    assert len(str(caught.value)) < 400


def test_pickled_objects_are_refused() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(PayloadError, match="only numbers and bool"):
        read_npy(buffer.getvalue())


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda tail: GOOD[:10] + tail))
@settings(deadline=None, max_examples=200)
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    try:
        array = read_npy(data)
    except PayloadError:
        return
    assert array.nbytes <= len(data)


@given(position=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
@settings(deadline=None, max_examples=300)
def test_one_changed_byte_raises_nothing_else(position: int, value: int) -> None:
    data = bytearray(GOOD)
    data[position] = value
    try:
        array = read_npy(bytes(data))
    except PayloadError:
        return
    assert array.nbytes == 24


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.sampled_from((0, 1, 2, 3, 10)), max_size=7) | st.just([100_000]),
)
@settings(deadline=None)
def test_the_bytes_of_an_array_are_foretold(dtype: str, shape: list[int]) -> None:
    array = np.zeros(shape, dtype)
    if array.nbytes > 10**6:
        array = array[:0]
    buffer = io.BytesIO()
    np.save(buffer, array)
    assert npy_nbytes(array) == len(buffer.getvalue())
