from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from simulations.conform import conform, conformed_shape
from zerofl_flwr.errors import DataError

GREY: NDArray[np.uint8] = np.array([[[[1, 2], [3, 4]]]], dtype=np.uint8)


def test_a_border_of_black_is_put_around() -> None:
    assert conform(GREY, 4, None)[0, 0].tolist() == [
        [0, 0, 0, 0],
        [0, 1, 2, 0],
        [0, 3, 4, 0],
        [0, 0, 0, 0],
    ]
    # An odd border is wider below and on the right; sides may need different ones.
    assert conform(GREY[:, :, :1], 3, None)[0, 0].tolist() == [[0, 0, 0], [1, 2, 0], [0, 0, 0]]


def test_grey_is_repeated_in_each_channel() -> None:
    images = conform(GREY, None, 3)
    assert images.dtype == np.uint8
    assert images.tolist() == [[[[1, 2], [3, 4]]] * 3]


@given(seed=st.integers(0, 100))
def test_colours_turn_grey_as_pil_does_it(seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, size=(8, 9, 3), dtype=np.uint8)
    grey = conform(pixels.transpose(2, 0, 1)[np.newaxis], None, 1)
    assert grey.dtype == np.uint8
    expected = np.asarray(Image.fromarray(pixels).convert("L"))
    np.testing.assert_array_equal(grey, expected[np.newaxis, np.newaxis])


def test_the_whole_range_of_grey_stays_as_it_is() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    np.testing.assert_array_equal(conform(conform(grey, None, 3), None, 1), grey)


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    more=st.integers(0, 5),
    channels=st.sampled_from([1, 3]),
    wanted=st.sampled_from([None, 1, 3]),
)
def test_the_shape_is_the_announced_one_and_the_picture_is_in_the_middle(
    height: int, width: int, more: int, channels: int, wanted: int | None
) -> None:
    images = np.full((2, channels, height, width), 7, dtype=np.uint8)
    size = max(height, width) + more
    conformed = conform(images, size, wanted)
    assert conformed.shape == (2, *conformed_shape(images, size, wanted))
    assert conformed.shape == (2, wanted or channels, size, size)
    top, left = (size - height) // 2, (size - width) // 2
    expected = np.zeros((size, size), dtype=np.uint8)
    expected[top : top + height, left : left + width] = 7
    assert (conformed == expected).all()


def test_nothing_to_do_copies_nothing() -> None:
    assert conform(GREY, None, None) is GREY
    assert conform(GREY, 2, 1) is GREY


@pytest.mark.parametrize(
    ("images", "size", "message"),
    [
        (GREY, 1, "image_size is 1, but the images are 2x2 pixels"),
        (np.zeros((1, 3, 4, 6), np.uint8), 5, "image_size is 5, but the images are 4x6 pixels"),
        (np.zeros((1, 1, 32, 32), np.float32), 40, "recordings make images of 32x32, which get no"),
        (np.zeros((1, 1, 32, 32), np.float32), 31, "larger ones are not shrunk"),
    ],
)
def test_what_cannot_be_conformed_is_refused(images: NDArray[Any], size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        conformed_shape(images, size, None)


def test_recordings_of_the_wanted_size_are_repeated_too() -> None:
    images = np.full((1, 1, 32, 32), -80, np.float32)
    assert conformed_shape(images, 32, 3) == (3, 32, 32)
    conformed = conform(images, 32, 3)
    assert conformed.dtype == np.float32
    assert conformed.shape == (1, 3, 32, 32)
    assert (conformed == -80).all()
