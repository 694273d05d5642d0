from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulations.data_settings import DataSettings
from simulations.joined import prepare_joined
from simulations.preparation import prepare_source
from simulations.prepared import Prepared
from tests.simulations.parquet_folders import (
    pictures,
    png,
    wav,
    write_labelled_pictures,
    write_split,
)
from zerofl_flwr.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def two(tmp_path: Path) -> DataSettings:
    """Grey 4x6 pictures of letters, and coloured 8x8 ones of numbers."""
    write_labelled_pictures(tmp_path / "letters", "train", ["c", "a", "b", "a"])
    write_labelled_pictures(tmp_path / "letters", "test", ["b", "c"], seed=1)
    pixels = np.random.default_rng(2).integers(0, 256, size=(7, 8, 8, 3), dtype=np.uint8)
    cells: list[object] = [png(picture) for picture in pixels]
    write_split(tmp_path / "numbers", "train", {"image": cells[:5], "label": [3, 0, 1, 2, 1]})
    write_split(tmp_path / "numbers", "test", {"image": cells[5:], "label": [1, 3]})
    return DataSettings(
        dataset=f"{tmp_path}/letters, {tmp_path}/numbers",
        partitioner="dataset",
        num_clients=2,
        image_size=8,
        image_channels=3,
    )


def sources_of(settings: DataSettings) -> list[Prepared]:
    return [
        prepare_source(replace(settings, dataset=name, partitioner="iid"))
        for name in settings.datasets
    ]


def test_rows_follow_each_other(two: DataSettings) -> None:
    joined = prepare_joined(two, sources_of(two))
    assert joined.arrays["labels"].tolist() == [2, 0, 1, 0, 1, 2, 3, 0, 1, 2, 1, 1, 3]
    assert joined.arrays["datasets"].tolist() == [0] * 6 + [1] * 7
    assert joined.arrays["train_rows"].tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10]
    assert joined.arrays["test_rows"].tolist() == [4, 5, 11, 12]
    assert all(array.dtype == np.int64 for array in joined.arrays.values())
    # They call their classes differently; there are as many as the one with most has.
    assert joined.meta["class_names"] == ["0", "1", "2", "3"]
    assert joined.meta["id_columns"] == {}


def test_only_the_first_classes_are_kept(two: DataSettings) -> None:
    joined = prepare_joined(replace(two, classes=2), sources_of(two))
    assert joined.arrays["train_rows"].tolist() == [1, 2, 3, 7, 8, 10]
    assert joined.arrays["test_rows"].tolist() == [4, 11]
    assert joined.meta["class_names"] == ["0", "1"]


def test_statistics_are_those_of_the_kept_rows_with_their_border(two: DataSettings) -> None:
    asked = replace(two, classes=2)
    sources = sources_of(asked)
    joined = prepare_joined(asked, sources)
    grey = sources[0].arrays["images"][[1, 2, 3], 0] / 1.0
    # 24 of 64 pixels hold the picture, the others are 0.
    mean = grey.sum() / (3 * 64)
    std = np.sqrt((grey**2).sum() / (3 * 64) - mean**2)
    np.testing.assert_allclose(joined.meta["mean"][0], [mean] * 3)
    np.testing.assert_allclose(joined.meta["std"][0], [std] * 3)
    colour = sources[1].arrays["images"][[1, 2, 4]]
    np.testing.assert_allclose(joined.meta["mean"][1], colour.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(joined.meta["std"][1], colour.std(axis=(0, 2, 3)))


def test_classes_keep_names_that_are_the_same_everywhere(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        write_labelled_pictures(tmp_path / name, "train", ["b", "a", "c"] * 20, seed=seed)
    asked = DataSettings(
        dataset=f"{tmp_path}/one,{tmp_path}/two", partitioner="dataset", num_clients=2
    )
    sources = sources_of(asked)
    assert prepare_joined(asked, sources).meta["class_names"] == ["a", "b", "c"]
    assert prepare_joined(replace(asked, classes=2), sources).meta["class_names"] == ["a", "b"]


def test_one_data_set_keeps_the_columns_to_divide_by(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {
        "image": list(pictures(20)),
        "label": [0, 1] * 10,
        "speaker": ["zoe", "ann", "bob", "ann"] * 5,
        "loudness": [0.5] * 20,
    }
    write_split(tmp_path / "own", "train", columns)
    asked = DataSettings(dataset=str(tmp_path / "own"), classes=1)
    source = prepare_source(asked)
    joined = prepare_joined(asked, [source])
    assert joined.meta["id_columns"] == source.meta["id_columns"]
    speakers = joined.arrays[joined.meta["id_columns"]["speaker"]]
    assert speakers.tolist() == [2, 0, 1, 0] * 5
    kept = {*joined.arrays["train_rows"].tolist(), *joined.arrays["test_rows"].tolist()}
    assert kept == set(range(0, 20, 2))


def test_each_setting_that_matters_is_joined_apart(two: DataSettings) -> None:
    sources = sources_of(two)
    same = (two, replace(two, num_clients=4), replace(two, seed=3), replace(two, test_samples=2))
    assert len({prepare_joined(settings, sources).key for settings in same}) == 1
    others = (
        two,
        replace(two, classes=2),
        replace(two, image_size=9),
        replace(two, image_channels=1),
    )
    keys = {prepare_joined(settings, sources).key for settings in others}
    names = two.datasets
    turned = replace(two, dataset=f"{names[1]},{names[0]}")
    keys.add(prepare_joined(turned, sources[::-1]).key)
    assert len(keys) == 5


def test_images_of_different_shapes_are_refused(two: DataSettings) -> None:
    message = r"letters 1x8x8, .*numbers 3x8x8; bring them together with image_size and image_chan"
    with pytest.raises(DataError, match=message):
        prepare_joined(replace(two, image_channels=None), sources_of(two))
    with pytest.raises(DataError, match=r"data set .*letters: image_size is 5, but the images are"):
        prepare_joined(replace(two, image_size=5), sources_of(two))


def test_too_many_classes_are_refused(two: DataSettings) -> None:
    with pytest.raises(DataError, match=r"classes is 4, but data set .*letters has 3 classes"):
        prepare_joined(replace(two, classes=4), sources_of(two))


def test_a_data_set_without_the_first_classes_is_refused(two: DataSettings) -> None:
    with pytest.raises(DataError, match=r"no test sample of .*letters is of its first 1 classes"):
        prepare_joined(replace(two, classes=1), sources_of(two))


def test_recordings_stand_beside_pictures_of_their_size_only(tmp_path: Path) -> None:
    clips: list[object] = [wav(np.zeros(800), 8000)] * 20
    write_split(tmp_path / "speech", "train", {"audio": clips, "label": [0, 1] * 10})
    write_labelled_pictures(tmp_path / "letters", "train", ["a", "b"] * 10)
    asked = DataSettings(
        dataset=f"{tmp_path}/speech,{tmp_path}/letters",
        partitioner="dataset",
        num_clients=2,
        image_size=32,
    )
    sources = sources_of(asked)
    assert prepare_joined(asked, sources).meta["mean"][0] == [pytest.approx(-80.0)]
    with pytest.raises(DataError, match=r"speech: image_size is 40, but recordings make images"):
        prepare_joined(replace(asked, image_size=40), sources)
