from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulations.data_settings import DataSettings
from simulations.preparation import prepare_source
from simulations.samples import open_samples
from tests.simulations.parquet_folders import write_labelled_pictures, write_split
from zerofl_flwr.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def two(tmp_path: Path) -> DataSettings:
    """Five pictures of 4x6 pixels, and the embedded digits of 8x8."""
    write_labelled_pictures(tmp_path / "own", "train", [0, 1, 2])
    write_labelled_pictures(tmp_path / "own", "test", [0, 1], seed=1)
    return DataSettings(
        dataset=f"{tmp_path}/own,digits", partitioner="dataset", num_clients=2, image_size=8
    )


def test_one_data_set_as_it_is_needs_no_table_of_its_own(cache: Path) -> None:
    samples = open_samples(DataSettings())
    source = prepare_source(DataSettings())
    assert samples.table.key == source.key
    assert not (cache / "joined").exists()
    assert samples.sample_shape == (1, 8, 8)
    assert samples.mean.tolist() == [[np.float32(source.meta["mean"][0])]]
    rows = np.array([5, 0, 1700])
    images = samples.images(rows)
    assert images.dtype == np.float32
    np.testing.assert_array_equal(images, source.arrays["images"][rows])
    assert samples.datasets(rows).tolist() == [0, 0, 0]


def test_images_of_several_data_sets_come_in_the_order_of_the_rows(two: DataSettings) -> None:
    samples = open_samples(two)
    digits = prepare_source(DataSettings()).arrays["images"]
    rng = np.random.default_rng(0)
    own = rng.integers(0, 256, size=(3, 4, 6), dtype=np.uint8)
    rows = np.array([5, 1, 1801, 0])  # the first digit, a picture, the last digit, a picture
    assert samples.datasets(rows).tolist() == [1, 0, 1, 0]
    images = samples.images(rows)
    assert images.shape == (4, *samples.sample_shape) == (4, 1, 8, 8)
    assert images.dtype == np.float32
    np.testing.assert_array_equal(images[[0, 2]], digits[[0, 1796]])
    np.testing.assert_array_equal(images[1, 0, 2:6, 1:7], own[1])
    np.testing.assert_array_equal(images[3, 0, 2:6, 1:7], own[0])
    assert images[1].sum() == own[1].sum()
    assert samples.labels[rows].tolist() == [0, 1, 8, 0]
    assert samples.mean.shape == samples.std.shape == (2, 1)


def test_no_rows_are_no_images(two: DataSettings) -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert open_samples(two).images(nothing).shape == (0, 1, 8, 8)
    assert open_samples(DataSettings()).images(nothing).shape == (0, 1, 8, 8)


def test_grey_digits_become_coloured_and_bordered() -> None:
    samples = open_samples(DataSettings(image_size=10, image_channels=3))
    assert samples.sample_shape == (3, 10, 10)
    images = samples.images(np.array([3]))
    digit = prepare_source(DataSettings()).arrays["images"][3, 0]
    for channel in range(3):
        np.testing.assert_array_equal(images[0, channel, 1:9, 1:9], digit)


def test_an_error_names_the_data_set_of_several(two: DataSettings, tmp_path: Path) -> None:
    write_split(tmp_path / "texts", "train", {"text": ["a"], "label": [0]})
    asked = replace(two, dataset=f"digits,{tmp_path}/texts")
    with pytest.raises(DataError, match=r"data set .*/texts: no image or audio column"):
        open_samples(asked)
    with pytest.raises(DataError, match=r"^no image or audio column"):
        open_samples(DataSettings(dataset=str(tmp_path / "texts")))
