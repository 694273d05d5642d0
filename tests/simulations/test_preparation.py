from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.data_settings import DataSettings
from simulations.preparation import (
    describe_source,
    prepare_partitions,
    prepare_source,
)
from tests.simulations.parquet_folders import write_labelled_pictures

# What a cache that is at hand is found by.
SOURCE_KEY = "09a91107014d039999c3940f15671b23"
PARTITIONS_KEY = "0bc9fe6682036a651cc9b820423e8255"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folders(cache: Path, kind: str) -> int:
    return len([path for path in (cache / kind).iterdir() if path.is_dir()])


def test_partitioning_anew_does_not_decode_anew(cache: Path) -> None:
    for settings in (
        DataSettings(),
        DataSettings(seed=1),
        DataSettings(partitioner="dirichlet"),
        DataSettings(num_clients=3),
        DataSettings(samples_per_client=5),
    ):
        prepare_partitions(settings, prepare_source(settings))
    assert folders(cache, "sources") == 1
    assert folders(cache, "partitions") == 5


def test_settings_that_do_not_matter_share_partitions(cache: Path) -> None:
    for settings in (
        DataSettings(),
        DataSettings(alpha=0.5),
        DataSettings(shards_per_client=5),
        DataSettings(validation_fraction=0.3),
        DataSettings(test_samples=7),
        DataSettings(partition_by="nothing"),
        DataSettings(classes_per_client=5),
        DataSettings(standardise="client"),
        DataSettings(validation_from="test", validation_samples=5),
    ):
        prepare_partitions(settings, prepare_source(settings))
    assert folders(cache, "partitions") == 1


def test_alpha_matters_where_it_is_used(cache: Path) -> None:
    for alpha in (1, 1.0, 2.0):
        settings = DataSettings(partitioner="dirichlet", alpha=alpha)
        prepare_partitions(settings, prepare_source(settings))
    assert folders(cache, "partitions") == 2


def test_classes_per_client_matter_where_they_are_used(cache: Path) -> None:
    for classes_per_client in (1, 2, 5):
        settings = DataSettings(partitioner="classes", classes_per_client=classes_per_client)
        prepare_partitions(settings, prepare_source(settings))
    assert folders(cache, "partitions") == 3


def test_keys_of_earlier_versions_are_kept() -> None:
    source = prepare_source(DataSettings())
    assert source.key == SOURCE_KEY
    assert prepare_partitions(DataSettings(), source).key == PARTITIONS_KEY


def test_changed_file_is_decoded_anew(tmp_path: Path) -> None:
    write_labelled_pictures(tmp_path / "own", "train", [0, 1] * 10)
    settings = DataSettings(dataset=str(tmp_path / "own"), num_clients=2)
    first = prepare_source(settings)
    assert prepare_source(settings).key == first.key
    write_labelled_pictures(tmp_path / "own", "train", [0, 1, 2] * 10)
    second = prepare_source(settings)
    assert second.key != first.key
    assert second.meta["class_names"] == ["0", "1", "2"]


def test_relative_and_absolute_paths_are_the_same_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_labelled_pictures(tmp_path / "own", "train", [0, 1] * 10)
    monkeypatch.chdir(tmp_path)
    relative = describe_source(DataSettings(dataset="own"))
    assert relative == describe_source(DataSettings(dataset=str(tmp_path / "own")))
    assert relative == describe_source(DataSettings(dataset="./own"))


def test_a_hub_source_is_known_by_its_name() -> None:
    assert describe_source(DataSettings(dataset="a/b", dataset_config="c")) == {
        "kind": "hub",
        "name": "a/b",
        "config": "c",
    }


def test_warm_cache_is_opened_without_the_dataset_libraries(cache: Path) -> None:
    settings = DataSettings()
    prepare_partitions(settings, prepare_source(settings))
    script = """
import sys
from simulations.data import DataSettings, load_data
assert len(load_data(DataSettings()).partition(0).train) > 0
print(sorted({"datasets", "flwr_datasets", "sklearn", "librosa"} & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "[]"
