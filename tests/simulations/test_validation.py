from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulations.data_settings import DataSettings
from simulations.preparation import prepare_partitions
from simulations.prepared import Prepared
from simulations.samples import Samples, open_samples
from simulations.validation import (
    FromTestSplit,
    HeldOut,
    make_validation,
    rows_of,
    shuffled_test_rows,
)
from tests.simulations.parquet_folders import write_labelled_pictures
from zerofl_flwr.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def divided(settings: DataSettings) -> tuple[Samples, Prepared]:
    samples = open_samples(settings)
    return samples, prepare_partitions(settings, samples.table)


def test_held_out_samples_are_a_share_of_the_clients_own() -> None:
    settings = DataSettings(num_clients=4, samples_per_client=50, validation_fraction=0.3)
    samples, partitions = divided(settings)
    validation = make_validation(settings, samples, partitions)
    assert isinstance(validation, HeldOut)
    train, held = validation.split(2)
    assert (len(train), len(held), validation.size(2)) == (35, 15, 15)
    assert sorted([*train, *held]) == sorted(rows_of(partitions, 2))
    # Drawn from (seed, 2, partition), as the format of earlier runs has it.
    order = np.random.default_rng((0, 2, 2)).permutation(rows_of(partitions, 2))
    assert held.tolist() == order[:15].tolist()


def test_test_samples_are_of_the_classes_that_the_client_trains_on() -> None:
    settings = DataSettings(partitioner="classes", num_clients=5, validation_from="test")
    samples, partitions = divided(settings)
    validation = make_validation(settings, samples, partitions)
    assert isinstance(validation, FromTestSplit)
    tested: list[int] = []
    for client in range(5):
        train, held = validation.split(client)
        np.testing.assert_array_equal(train, rows_of(partitions, client))
        assert set(samples.labels[train]) == {2 * client, 2 * client + 1}
        assert set(samples.labels[held]) == {2 * client, 2 * client + 1}
        assert validation.size(client) == len(held)
        tested += held.tolist()
    assert sorted(tested) == samples.test_rows.tolist()


def test_as_many_at_most_always_the_same_ones() -> None:
    asked = {"partitioner": "classes", "num_clients": 5, "validation_from": "test"}
    kept: list[list[int]] = []
    for seed, most in ((0, None), (1, 20), (0, 20), (0, 10)):
        settings = DataSettings(**asked, seed=seed, validation_samples=most)  # type: ignore[arg-type]
        samples, partitions = divided(settings)
        validation = make_validation(settings, samples, partitions)
        kept.append(validation.split(3)[1].tolist())
        assert validation.size(3) == len(kept[-1])
    everything, other_seed, some, few = kept
    assert len(everything) > len(some) == 20
    assert everything[:20] == some == other_seed
    assert some[:10] == few
    own = [row for row in shuffled_test_rows(samples.test_rows) if samples.labels[row] in (6, 7)]
    assert own == everything


@pytest.fixture
def two(tmp_path: Path) -> str:
    """Two data sets with the same classes, the second one without a c in training."""
    write_labelled_pictures(tmp_path / "one", "train", list("abc") * 4)
    write_labelled_pictures(tmp_path / "one", "test", list("abcab"), seed=1)
    write_labelled_pictures(tmp_path / "two", "train", list("ab") * 4, seed=2)
    write_labelled_pictures(tmp_path / "two", "test", list("cbacc"), seed=3)
    return f"{tmp_path}/one,{tmp_path}/two"


def test_test_samples_are_of_the_clients_own_data_set(two: str) -> None:
    settings = DataSettings(
        dataset=two, partitioner="dataset", num_clients=4, validation_from="test"
    )
    samples, partitions = divided(settings)
    validation = make_validation(settings, samples, partitions)
    # 12 + 5 rows of the first, 8 + 5 of the second; the second has no c to train on.
    held = [sorted(validation.split(client)[1]) for client in range(4)]
    assert held == [[12, 13, 14, 15, 16], [26, 27]] * 2
    assert [validation.size(client) for client in range(4)] == [5, 2, 5, 2]


def test_a_clients_test_samples_do_not_depend_on_other_data_sets(two: str) -> None:
    together = DataSettings(
        dataset=two,
        partitioner="dataset",
        num_clients=2,
        validation_from="test",
        validation_samples=3,
    )
    alone = DataSettings(
        dataset=two.split(",")[0], num_clients=1, validation_from="test", validation_samples=3
    )
    first, second = (
        make_validation(settings, *divided(settings)).split(0)[1] for settings in (together, alone)
    )
    assert first.tolist() == second.tolist()


def test_a_client_without_test_samples_is_refused(tmp_path: Path) -> None:
    write_labelled_pictures(tmp_path / "own", "train", [0, 1, 2, 3] * 5)
    write_labelled_pictures(tmp_path / "own", "test", [0, 1, 2], seed=1)
    settings = DataSettings(
        dataset=str(tmp_path / "own"),
        partitioner="natural",
        num_clients=4,
        validation_from="test",
    )
    samples, partitions = divided(settings)
    with pytest.raises(DataError, match="no sample of the classes that client 3 trains on"):
        make_validation(settings, samples, partitions)
