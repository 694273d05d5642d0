from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulations.data_settings import DataSettings
from simulations.preparation import prepare_source
from simulations.prepared import Prepared
from simulations.sources import hold_out
from tests.simulations.parquet_folders import (
    picture_dataset,
    pictures,
    png,
    slice_of_real,
    wav,
    write_labelled_pictures,
    write_split,
)
from zerofl_flwr.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def check_consistent(source: Prepared) -> None:
    """What holds for every source."""
    images, labels = source.arrays["images"], source.arrays["labels"]
    train, test = source.arrays["train_rows"], source.arrays["test_rows"]
    assert len(images) == len(labels) == len(train) + len(test)
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert labels.dtype == train.dtype == test.dtype == np.int64
    assert 0 <= labels.min() <= labels.max() < len(source.meta["class_names"])
    mean, std = images[train].mean(axis=(0, 2, 3)), images[train].std(axis=(0, 2, 3))
    np.testing.assert_allclose(source.meta["mean"], mean, rtol=1e-4)
    np.testing.assert_allclose(source.meta["std"], std, rtol=1e-4)


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    source = prepare_source(DataSettings())
    check_consistent(source)
    bundle = load_digits()
    assert source.arrays["images"].dtype == np.uint8
    np.testing.assert_array_equal(source.arrays["images"][:, 0], bundle.images)
    np.testing.assert_array_equal(source.arrays["labels"], bundle.target)
    assert source.meta["class_names"] == list("0123456789")
    assert len(source.arrays["train_rows"]) == 1438
    assert len(source.arrays["test_rows"]) == 359


def test_test_rows_do_not_depend_on_the_seed() -> None:
    one, other = (prepare_source(DataSettings(seed=seed)) for seed in (0, 1))
    assert one.key == other.key


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=200),
    fraction=st.sampled_from([0.1, 0.2, 0.5]),
    seed=st.integers(0, 5),
)
def test_held_out_rows_are_stratified(labels: list[int], fraction: float, seed: int) -> None:
    classes = np.asarray(labels, dtype=np.int64)
    wanted = [round(fraction * int(count)) for count in np.bincount(classes, minlength=5)]
    if sum(wanted) == 0:
        with pytest.raises(DataError, match="too few to hold out"):
            hold_out(classes, fraction, seed)
        return
    held = hold_out(classes, fraction, seed)
    assert np.bincount(classes[held], minlength=5).tolist() == wanted
    np.testing.assert_array_equal(held, hold_out(classes, fraction, seed))


def test_folder_without_test_split_holds_out_a_tenth(tmp_path: Path) -> None:
    write_labelled_pictures(tmp_path / "own", "train", ["b", "a"] * 50)
    source = prepare_source(DataSettings(dataset=str(tmp_path / "own")))
    check_consistent(source)
    assert source.meta["class_names"] == ["a", "b"]
    assert np.bincount(source.arrays["labels"][source.arrays["test_rows"]]).tolist() == [5, 5]


def test_folder_with_test_split_keeps_it(tmp_path: Path) -> None:
    write_labelled_pictures(tmp_path / "own", "train", [7, 5, 7], seed=1)
    write_labelled_pictures(tmp_path / "own", "test", [5, 9], seed=2)
    source = prepare_source(DataSettings(dataset=str(tmp_path / "own")))
    check_consistent(source)
    assert source.meta["class_names"] == ["5", "7", "9"]
    assert source.arrays["labels"].tolist() == [1, 0, 1, 0, 2]
    assert source.arrays["test_rows"].tolist() == [3, 4]
    rng = np.random.default_rng(2)
    expected = rng.integers(0, 256, size=(2, 4, 6), dtype=np.uint8)
    np.testing.assert_array_equal(source.arrays["images"][3:, 0], expected)


def test_columns_to_divide_by_are_numbered(tmp_path: Path) -> None:
    write_split(
        tmp_path / "own",
        "train",
        {
            "image": list(pictures(20)),
            "label": [0, 1] * 10,
            "speaker": ["zoe", "ann", "ann", "bob"] * 5,
            "loudness": [0.5] * 20,
            "room": [None, *range(18, -1, -1)],
            "city": [None] * 20,
            "boxes": [[1, 2]] * 20,
        },
    )
    source = prepare_source(DataSettings(dataset=str(tmp_path / "own")))
    columns = source.meta["id_columns"]
    assert source.arrays[columns["speaker"]].tolist() == [2, 0, 0, 1] * 5
    assert columns["label"] == "labels"
    assert columns["loudness"] == "column 'loudness' must hold integers or texts, found float"
    assert source.arrays[columns["room"]].tolist() == [-1, *range(18, -1, -1)]
    assert columns["city"] == "column 'city' has missing values only"
    assert columns["boxes"] == "column 'boxes' must hold integers or texts"


def test_constant_channel_is_only_centred(tmp_path: Path) -> None:
    grey: NDArray[np.uint8] = np.full((3, 3), 9, dtype=np.uint8)
    write_split(tmp_path / "own", "train", {"image": [png(grey)] * 20, "label": [0, 1] * 10})
    source = prepare_source(DataSettings(dataset=str(tmp_path / "own")))
    assert source.meta["mean"] == [9.0]
    assert source.meta["std"] == [1.0]


def test_hub_data_set_goes_through_load_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = datasets.DatasetDict(
        train=picture_dataset([1, 0, 1], ["no", "yes", "maybe"]),
        test=picture_dataset([0], ["no", "yes", "maybe"], seed=1),
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: splits)
    source = prepare_source(DataSettings(dataset="owner/name"))
    check_consistent(source)
    assert source.meta["class_names"] == ["no", "yes", "maybe"]
    assert source.arrays["labels"].tolist() == [1, 0, 1, 0]


def test_recordings_become_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clips: list[object] = [wav(rng.uniform(-1, 1, 4000), 8000) for _ in range(20)]
    write_split(tmp_path / "own", "train", {"audio": clips, "label": [0, 1] * 10})
    log_mel = prepare_source(DataSettings(dataset=str(tmp_path / "own")))
    mfcc = prepare_source(DataSettings(dataset=str(tmp_path / "own"), audio_features="mfcc"))
    for source in (log_mel, mfcc):
        check_consistent(source)
        assert source.arrays["images"].shape == (20, 1, 32, 32)
        assert source.arrays["images"].dtype == np.float32
    assert not np.allclose(log_mel.arrays["images"], mfcc.arrays["images"])


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"text": ["a"], "label": [0]}, None, "no image or audio column among 'text', 'label'"),
        ({"image": pictures(1), "kind": [0]}, None, "no label column among 'image', 'kind'"),
        ({"image": [b"x"], "label": [0]}, {"image": [b"x"], "label": [0]}, "row 0: the image"),
        ({"image": pictures(3), "label": [0] * 3}, None, "3 samples are too few to hold out 10%"),
        ({"audio": [b"x"], "label": [0]}, {"audio": [b"x"], "label": [0]}, "row 0: the recording"),
    ],
)
def test_unusable_folder_is_refused(
    tmp_path: Path,
    train: dict[str, list[object]],
    test: dict[str, list[object]] | None,
    message: str,
) -> None:
    write_split(tmp_path / "own", "train", train)
    if test is not None:
        write_split(tmp_path / "own", "test", test)
    with pytest.raises(DataError, match=message):
        prepare_source(DataSettings(dataset=str(tmp_path / "own")))


def test_test_split_without_the_label_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    train = picture_dataset([0, 1], ["no", "yes"])
    splits = datasets.DatasetDict(train=train, test=train.remove_columns("label"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: splits)
    with pytest.raises(DataError, match="the test split lacks the column 'label'"):
        prepare_source(DataSettings(dataset="owner/name"))


@pytest.mark.parametrize(
    ("name", "shape", "first_classes"),
    [
        ("fashion_mnist", (1, 28, 28), ["T-shirt/top", "Trouser"]),
        ("cifar10", (3, 32, 32), ["airplane", "automobile"]),
    ],
)
def test_real_images(
    tmp_path: Path, name: str, shape: tuple[int, int, int], first_classes: list[str]
) -> None:
    folder = slice_of_real(name, tmp_path / name, train=60, test=20)
    source = prepare_source(DataSettings(dataset=str(folder)))
    check_consistent(source)
    assert source.arrays["images"].shape == (80, *shape)
    assert source.meta["class_names"][:2] == first_classes
    assert len(source.meta["class_names"]) == 10
    # Photographs and clothes: some mean brightness, and plenty of contrast.
    assert all(20 < mean < 200 for mean in source.meta["mean"])
    assert all(40 < std < 110 for std in source.meta["std"])


def test_real_recordings(tmp_path: Path) -> None:
    folder = slice_of_real("fsdd", tmp_path / "fsdd", train=60, test=20, step=15)
    source = prepare_source(DataSettings(dataset=str(folder)))
    check_consistent(source)
    assert source.arrays["images"].shape == (80, 1, 32, 32)
    assert "speaker" in source.meta["id_columns"]
    # Spoken digits last half a second, so the last frames are silent padding.
    images = source.arrays["images"]
    assert np.median(images[..., 31]) == pytest.approx(-80.0)
    assert np.median(images[..., 4]) > -70
