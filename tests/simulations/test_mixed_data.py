"""Clients with data sets, or classes, of their own: the data of AdaSplit's two experiments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simulations.data import DataSettings, load_data
from simulations.preparation import prepare_source
from simulations.settings import RunSettings
from tests.simulations.parquet_folders import (
    png,
    slice_of_real,
    write_labelled_pictures,
    write_split,
)
from zerofl_flwr.errors import DataError, SettingsError


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAN_FLWR_CACHE", str(tmp_path_factory.mktemp("cache")))
        load_data.cache_clear()
        yield
        load_data.cache_clear()


@pytest.fixture
def mixed(tmp_path: Path) -> DataSettings:
    """A grey data set and a coloured one of three classes, of which two are kept."""
    write_labelled_pictures(tmp_path / "grey", "train", list("abcab") * 6)
    write_labelled_pictures(tmp_path / "grey", "test", list("abcab") * 2, seed=1)
    rng = np.random.default_rng(2)
    pixels = rng.integers(100, 256, size=(20, 8, 8, 3), dtype=np.uint8)
    cells: list[object] = [png(picture) for picture in pixels]
    write_split(tmp_path / "colour", "train", {"image": cells[:14], "label": [0, 1] * 7})
    write_split(tmp_path / "colour", "test", {"image": cells[14:], "label": [0, 1, 2] * 2})
    return DataSettings(
        dataset=f"{tmp_path}/grey,{tmp_path}/colour",
        partitioner="dataset",
        num_clients=2,
        samples_per_client=20,
        classes=2,
        image_size=8,
        image_channels=3,
        validation_from="test",
        validation_samples=5,
        standardise="client",
    )


def moments(images: torch.Tensor) -> NDArray[np.float64]:
    """Mean and standard deviation of each channel, (2, C)."""
    pixels = images.numpy().astype(np.float64)
    return np.stack([pixels.mean(axis=(0, 2, 3)), pixels.std(axis=(0, 2, 3))])


def test_each_client_has_a_data_set_of_one_shape_and_shares_the_outputs(
    mixed: DataSettings,
) -> None:
    data = load_data(mixed)
    assert (data.num_partitions, data.num_classes, data.sample_shape) == (2, 2, (3, 8, 8))
    assert data.class_names == ("0", "1")
    assert data.label_counts().sum(axis=1).tolist() == [20, 14]  # the second has no more
    for client, tested in ((0, 5), (1, 4)):
        part = data.partition(client)
        assert len(part.validation) == data.validation_size(client) == tested
        for split in (part.train, part.validation):
            assert split.tensors[0].shape[1:] == (3, 8, 8)
            assert set(split.tensors[1].tolist()) == {0, 1}
    assert len(data.test) == 8 + 4


def test_a_client_standardises_with_its_own_training_samples(mixed: DataSettings) -> None:
    data = load_data(mixed)
    for client in range(2):
        own = moments(data.partition(client).train.tensors[0])
        np.testing.assert_allclose(own, [[0] * 3, [1] * 3], atol=1e-5)
    # The whole training split of the second data set is the client's.
    source = prepare_source(
        DataSettings(dataset=mixed.datasets[1], num_clients=1, image_channels=3)
    )
    images = source.arrays["images"][:14].astype(np.float64)
    mean, std = images.mean(axis=(0, 2, 3)), images.std(axis=(0, 2, 3))
    tested = data.partition(1).validation.tensors[0].numpy()
    restored = tested * std.reshape(3, 1, 1) + mean.reshape(3, 1, 1)
    np.testing.assert_allclose(restored, np.round(restored), atol=1e-4)
    assert {image.tobytes() for image in np.round(restored).astype(np.uint8)} == {
        image.tobytes() for image in source.arrays["images"][[14, 15, 17, 18]]
    }


def test_the_servers_test_samples_take_their_data_sets_statistics(mixed: DataSettings) -> None:
    data = load_data(mixed)
    assert torch.equal(
        data.test.tensors[0], load_data(replace(mixed, standardise="dataset")).test.tensors[0]
    )
    colour = moments(data.test.tensors[0][8:])
    assert (abs(colour[0]) < 0.3).all()  # near, but not its own
    assert (abs(colour[0]) > 1e-6).all()
    assert data.test.tensors[1][8:].tolist() == [0, 1, 0, 1]
    # Black has one value in each data set: 0 minus mean, over deviation.
    border = data.test.tensors[0][:8, 0, 0, 0]
    assert len(set(border.tolist())) == 1


def test_data_set_statistics_are_those_of_the_kept_classes(mixed: DataSettings) -> None:
    data = load_data(replace(mixed, samples_per_client=None, standardise="dataset", num_clients=4))
    for first in (0, 1):  # two clients of a data set hold all of it
        images = [data.partition(client).train.tensors[0] for client in (first, first + 2)]
        np.testing.assert_allclose(moments(torch.cat(images)), [[0] * 3, [1] * 3], atol=1e-5)


def test_held_out_validation_samples_come_off_the_cap(mixed: DataSettings) -> None:
    data = load_data(
        replace(mixed, validation_from="train", validation_samples=None, validation_fraction=0.25)
    )
    sizes = [(len(data.partition(i).train), len(data.partition(i).validation)) for i in range(2)]
    assert sizes == [(15, 5), (11, 3)]
    own = moments(data.partition(0).train.tensors[0])
    np.testing.assert_allclose(own, [[0] * 3, [1] * 3], atol=1e-5)


def test_same_seed_same_samples(mixed: DataSettings) -> None:
    first = load_data(mixed)
    load_data.cache_clear()
    second = load_data(mixed)
    assert first is not second
    other = load_data(replace(mixed, seed=1))
    for client in range(2):
        one, again = first.partition(client), second.partition(client)
        assert first.partition(client) is one
        for split in ("train", "validation"):
            for tensors in zip(
                getattr(one, split).tensors, getattr(again, split).tensors, strict=True
            ):
                assert torch.equal(*tensors)
        assert torch.equal(one.validation.tensors[1], other.partition(client).validation.tensors[1])
    assert not torch.equal(first.partition(0).train.tensors[1], other.partition(0).train.tensors[1])


def test_clients_with_classes_of_their_own() -> None:
    data = load_data(
        DataSettings(
            partitioner="classes",
            num_clients=5,
            classes_per_client=2,
            samples_per_client=200,
            validation_from="test",
            standardise="client",
        )
    )
    assert data.num_classes == 10
    counts = data.label_counts()
    assert counts.sum(axis=1).tolist() == [200] * 5
    for client in range(5):
        own = {2 * client, 2 * client + 1}
        assert set(np.flatnonzero(counts[client])) == own
        part = data.partition(client)
        assert set(part.train.tensors[1].tolist()) == own
        assert set(part.validation.tensors[1].tolist()) == own
        assert len(part.train) == 200
        np.testing.assert_allclose(moments(part.train.tensors[0]), [[0], [1]], atol=1e-5)
    assert sum(data.validation_size(client) for client in range(5)) == len(data.test) == 359


def test_the_first_classes_of_one_data_set_alone() -> None:
    data = load_data(DataSettings(classes=3, partitioner="dirichlet", num_clients=4))
    assert data.class_names == ("0", "1", "2")
    assert data.label_counts().shape == (4, 3)
    assert set(data.test.tensors[1].tolist()) == {0, 1, 2}
    with pytest.raises(DataError, match="classes is 11, but data set digits has 10 classes"):
        load_data(DataSettings(classes=11))


def test_what_the_data_do_not_allow_is_refused() -> None:
    with pytest.raises(SettingsError, match="classes_per_client is 3, but 10 classes do not"):
        load_data(DataSettings(partitioner="classes", num_clients=3, classes_per_client=3))
    with pytest.raises(DataError, match="the classes 0, 1 need at least 400 training samples"):
        load_data(DataSettings(partitioner="classes", num_clients=5, samples_per_client=400))
    with pytest.raises(DataError, match="with commas between, go with partitioner 'dataset'"):
        load_data(DataSettings(dataset="digits,./own", partitioner="dirichlet"))


def test_each_of_several_data_folders_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    several = {"dataset": "./one, two,digits", "partitioner": "dataset", "num-clients": 12}
    settings = RunSettings.from_mapping(several).resolved()
    assert settings.data.datasets == (f"{tmp_path}/one", f"{tmp_path}/two", "digits")
    assert settings.resolved() is settings
    assert RunSettings.from_mapping(settings.to_mapping()) == settings


FIVE = ("cifar10", "fashion_mnist", "mnist-10k", "notmnist-10k", "fsdd")


def test_five_real_data_sets(tmp_path: Path) -> None:
    for name in FIVE:
        step = 13 if name == "fsdd" else 1  # which is in the order of speakers and digits
        slice_of_real(name, tmp_path / name, train=200, test=20, step=step)
    data = load_data(
        DataSettings(
            dataset=",".join(str(tmp_path / name) for name in FIVE),
            partitioner="dataset",
            num_clients=5,
            samples_per_client=80,
            classes=5,
            image_size=32,
            image_channels=3,
            validation_from="test",
            validation_samples=6,
            standardise="client",
        )
    )
    assert data.sample_shape == (3, 32, 32)
    assert data.num_classes == 5
    for client, name in enumerate(FIVE):
        part = data.partition(client)
        images, labels = part.train.tensors
        assert 60 <= len(images) <= 80, name
        assert set(labels.tolist()) == set(range(5)), name
        assert 1 <= len(part.validation) <= 6, name
        np.testing.assert_allclose(moments(images), [[0] * 3, [1] * 3], atol=1e-5)
        grey = bool((images[:, 0] == images[:, 1]).all())
        assert grey == (name != "cifar10")
        bordered = len(set(images[:, 0, :2].flatten().tolist())) == 1
        assert bordered == (name not in ("cifar10", "fsdd"))


def test_real_photographs_by_two_classes(tmp_path: Path) -> None:
    folder = slice_of_real("cifar10", tmp_path / "cifar10", train=400, test=100)
    data = load_data(
        DataSettings(
            dataset=str(folder),
            partitioner="classes",
            num_clients=5,
            samples_per_client=50,
            validation_from="test",
            validation_samples=10,
            standardise="client",
        )
    )
    assert data.num_classes == 10
    for client in range(5):
        part = data.partition(client)
        assert set(part.train.tensors[1].tolist()) == {2 * client, 2 * client + 1}
        assert len(part.train) == 50
        assert len(part.validation) == 10
