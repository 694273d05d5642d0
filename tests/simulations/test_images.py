from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from simulations.images import common_shape, image_arrays, open_picture
from tests.simulations.parquet_folders import png
from zerofl_flwr.errors import DataError

Cell = Mapping[str, Any] | bytes | None
GREY = np.array([[0, 50, 100], [150, 200, 255]], dtype=np.uint8)
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], axis=-1)


def test_grey_pictures_keep_one_channel_and_their_values() -> None:
    cells: list[Cell] = [{"bytes": png(GREY), "path": None}, png(255 - GREY)]
    assert common_shape(cells) == (1, 2, 3)
    (chunk,) = image_arrays(cells, 1)
    assert chunk.dtype == np.uint8
    np.testing.assert_array_equal(chunk, np.stack([GREY, 255 - GREY])[:, np.newaxis])


def test_one_coloured_picture_makes_all_coloured() -> None:
    cells = [png(GREY), png(COLOUR)]
    assert common_shape(cells) == (3, 2, 3)
    (chunk,) = image_arrays(cells, 3)
    np.testing.assert_array_equal(chunk[0], np.stack([GREY, GREY, GREY]))
    np.testing.assert_array_equal(chunk[1], COLOUR.transpose(2, 0, 1))


def test_chunks_keep_the_order() -> None:
    cells = [png(np.full((2, 2), value, dtype=np.uint8)) for value in range(7)]
    chunks = list(image_arrays(cells, 1, chunk=3))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    assert np.concatenate(chunks)[:, 0, 0, 0].tolist() == list(range(7))


def test_picture_from_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(GREY))
    picture = open_picture({"bytes": None, "path": str(tmp_path / "a.png")}, 0)
    np.testing.assert_array_equal(np.asarray(picture), GREY)


def test_bad_pictures_are_refused() -> None:
    with pytest.raises(DataError, match="row 1: there is no image"):
        common_shape([png(GREY), None])
    with pytest.raises(DataError, match="row 0: there is no image"):
        common_shape([{"bytes": None, "path": None}])
    with pytest.raises(DataError, match="row 0: the image cannot be read"):
        common_shape([b"no picture"])
    with pytest.raises(DataError, match="row 1: the image is 2x3 pixels, the first one 3x2"):
        common_shape([png(GREY), png(GREY.T)])
    with pytest.raises(DataError, match="there are no images"):
        common_shape([])


def test_cut_off_picture_is_refused() -> None:
    rng = np.random.default_rng(0)
    whole = png(rng.integers(0, 256, size=(64, 64), dtype=np.uint8))
    with pytest.raises(DataError, match="row 0: the image cannot be decoded"):
        list(image_arrays([whole[: len(whole) // 2]], 1))


def test_sixteen_bit_picture_is_refused() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.full((2, 2), 40000, dtype=np.uint16)).save(buffer, format="png")
    with pytest.raises(DataError, match="row 0: the image has more than 8 bits"):
        common_shape([buffer.getvalue()])
