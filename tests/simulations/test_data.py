from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import simulations.data
from simulations.data import DataSettings, FederatedData, load_data
from tests.simulations.parquet_folders import slice_of_real
from zerofl_flwr.errors import DataError


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAN_FLWR_CACHE", str(tmp_path_factory.mktemp("cache")))
        load_data.cache_clear()
        yield
        load_data.cache_clear()


def samples(dataset: TensorDataset) -> list[bytes]:
    """Each sample with its label, in a form that can be compared and counted."""
    images, labels = dataset.tensors
    return [
        image.numpy().tobytes() + label.numpy().tobytes()
        for image, label in zip(images, labels, strict=True)
    ]


def test_digits_by_default() -> None:
    data = load_data(DataSettings())
    assert (data.num_partitions, data.num_classes) == (10, 10)
    assert data.sample_shape == (1, 8, 8)
    assert data.class_names == tuple("0123456789")
    part = data.partition(3)
    images, labels = part.train.tensors
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert images.shape == (130, 1, 8, 8)
    assert labels.shape == (130,)
    assert len(part.validation) == 14
    assert len(data.test) == 359


@pytest.mark.parametrize(
    "changes", [{"validation_fraction": 0.3}, {"validation_from": "test"}], ids=str
)
def test_training_labels_are_known_without_the_tensors(changes: dict[str, Any]) -> None:
    data = load_data(DataSettings(num_clients=4, partitioner="dirichlet", alpha=0.5, **changes))
    for partition_id in range(4):
        trained = data.partition(partition_id).train.tensors[1]
        assert data.training_labels(partition_id).tolist() == trained.tolist()
    with pytest.raises(DataError, match="there is no partition 4"):
        data.training_labels(4)


def test_images_are_normalised_with_the_training_statistics() -> None:
    data = load_data(DataSettings(num_clients=4, validation_fraction=0.0))
    images = torch.cat([data.partition(i).train.tensors[0] for i in range(4)])
    assert len(images) == 1438
    assert images.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert images.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-5)
    # The test images are put on the same scale, so they only nearly have these moments.
    test = data.test.tensors[0]
    assert 1e-5 < abs(test.mean().item()) < 0.05
    # Grey value 0 is the same number everywhere.
    assert images.min().item() == test.min().item()


@settings(max_examples=25)
@given(
    clients=st.integers(1, 40),
    fraction=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.99]),
    seed=st.integers(0, 3),
)
def test_every_training_sample_has_one_place(clients: int, fraction: float, seed: int) -> None:
    data = load_data(DataSettings(num_clients=clients, validation_fraction=fraction, seed=seed))
    parts = [data.partition(i) for i in range(clients)]
    for part in parts:
        size = len(part.train) + len(part.validation)
        assert len(part.validation) == int(round(100 * fraction) * size / 100)
        assert len(part.train) >= 1
    # Digits holds no two equal pictures, so samples can be told apart by their content.
    together = [
        s for part in parts for split in (part.train, part.validation) for s in samples(split)
    ]
    assert len(together) == len(set(together)) == 1438
    assert set(together).isdisjoint(samples(data.test))


def test_a_single_sample_is_trained_on() -> None:
    data = load_data(DataSettings(num_clients=3, samples_per_client=1, validation_fraction=0.9))
    assert [len(data.partition(i).train) for i in range(3)] == [1, 1, 1]
    assert [len(data.partition(i).validation) for i in range(3)] == [0, 0, 0]
    assert data.partition(0).validation.tensors[0].shape == (0, 1, 8, 8)


def test_same_seed_same_samples_in_the_same_order() -> None:
    asked = DataSettings(partitioner="dirichlet", num_clients=5, seed=3)
    first = load_data(asked)
    load_data.cache_clear()
    second = load_data(asked)
    assert first is not second
    for i in range(5):
        assert samples(first.partition(i).train) == samples(second.partition(i).train)
        assert samples(first.partition(i).validation) == samples(second.partition(i).validation)
    other = load_data(replace(asked, seed=4))
    assert samples(first.partition(0).train) != samples(other.partition(0).train)
    assert samples(first.test) == samples(other.test)


def test_validation_split_does_not_move_samples_between_clients() -> None:
    asked = DataSettings(num_clients=5)
    plain = load_data(replace(asked, validation_fraction=0.0)).partition(2)
    split = load_data(replace(asked, validation_fraction=0.3)).partition(2)
    assert sorted(samples(plain.train)) == sorted(samples(split.train) + samples(split.validation))
    assert len(plain.validation) == 0


def test_label_counts_are_those_of_the_samples() -> None:
    data = load_data(DataSettings(partitioner="dirichlet", alpha=0.5, num_clients=6))
    counts = data.label_counts()
    assert counts.shape == (6, 10)
    assert counts.dtype == np.int64
    for i in range(6):
        part = data.partition(i)
        labels = torch.cat([part.train.tensors[1], part.validation.tensors[1]])
        assert counts[i].tolist() == torch.bincount(labels, minlength=10).tolist()
    assert set(counts.sum(axis=1)) == {1438 // 6}


def test_test_subset_is_the_same_for_every_seed() -> None:
    few, fewer, other = (
        load_data(DataSettings(test_samples=count, seed=seed)).test
        for count, seed in ((50, 0), (20, 0), (50, 1))
    )
    assert len(few) == 50
    assert samples(few)[:20] == samples(fewer)
    assert samples(few) == samples(other)
    assert set(samples(few)) < set(samples(load_data(DataSettings()).test))
    # A shuffle, not the file's order, so every class is there.
    assert len(set(few.tensors[1].tolist())) == 10


def test_too_many_test_samples_are_refused() -> None:
    with pytest.raises(DataError, match="test_samples is 360, but the test split has 359"):
        load_data(DataSettings(test_samples=360))


@pytest.mark.parametrize("partition_id", [-1, 10])
def test_unknown_partition_is_refused(partition_id: int) -> None:
    with pytest.raises(DataError, match=f"no partition {partition_id}, they are 0 to 9"):
        load_data(DataSettings()).partition(partition_id)


def test_loaded_once_a_process() -> None:
    data = load_data(DataSettings(seed=11))
    assert load_data(DataSettings(seed=11)) is data
    assert data.partition(1) is data.partition(1)
    assert data.test is data.test


def test_kept_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data: FederatedData = load_data(DataSettings(seed=12))
    monkeypatch.setattr(simulations.data, "_KEPT_PARTITIONS", 2)
    first, second = data.partition(0), data.partition(1)
    assert data.partition(0) is first  # now used more recently than 1
    data.partition(2)
    assert data.partition(0) is first
    assert data.partition(1) is not second
    assert samples(data.partition(1).train) == samples(second.train)
    monkeypatch.setattr(simulations.data, "_KEPT_BYTES", 1)
    assert data.partition(5) is data.partition(5)  # one is always kept


def test_damaged_cache_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path))
    load_data.cache_clear()
    before = samples(load_data(DataSettings()).partition(0).train)
    for file in tmp_path.rglob("*.npy"):
        file.write_bytes(file.read_bytes()[:-1])
    load_data.cache_clear()
    assert samples(load_data(DataSettings()).partition(0).train) == before
    load_data.cache_clear()


def test_real_clothes_in_equal_dirichlet_partitions(tmp_path: Path) -> None:
    folder = slice_of_real("fashion_mnist", tmp_path / "clothes", train=600, test=50)
    data = load_data(
        DataSettings(
            dataset=str(folder), partitioner="dirichlet", num_clients=10, samples_per_client=30
        )
    )
    assert data.sample_shape == (1, 28, 28)
    assert data.class_names[9] == "Ankle boot"
    assert [len(data.partition(i).train) for i in range(10)] == [27] * 10
    assert len(data.test) == 50


def test_real_speakers_are_natural_clients(tmp_path: Path) -> None:
    folder = slice_of_real("fsdd", tmp_path / "fsdd", train=90, test=10, step=30)
    data = load_data(
        DataSettings(
            dataset=str(folder), partitioner="natural", partition_by="speaker", num_clients=6
        )
    )
    assert data.sample_shape == (1, 32, 32)
    assert data.num_classes == 10
    assert data.label_counts().sum() == 90
