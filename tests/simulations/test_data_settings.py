from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from simulations.data_settings import DataSettings
from zerofl_flwr.errors import SettingsError


def test_defaults_are_the_documented_ones() -> None:
    settings = DataSettings()
    assert (settings.dataset, settings.partitioner, settings.num_clients) == ("digits", "iid", 10)
    assert (settings.alpha, settings.validation_fraction, settings.seed) == (1.0, 0.1, 0)
    assert settings.samples_per_client is None
    assert settings.test_samples is None


def test_equal_settings_hash_alike_and_are_frozen() -> None:
    assert hash(DataSettings(seed=3)) == hash(replace(DataSettings(), seed=3))
    with pytest.raises(FrozenInstanceError):
        DataSettings().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dataset", "", "dataset must be a non-empty text"),
        ("dataset_config", " ", "dataset_config must be a non-empty text"),
        ("partitioner", "dirichelt", "did you mean 'dirichlet'"),
        ("audio_features", "mfccs", "did you mean 'mfcc'"),
        ("alpha", 0.0, "alpha must be a number greater than 0"),
        ("alpha", float("nan"), "alpha must be a number greater than 0"),
        ("alpha", float("inf"), "alpha must be a number greater than 0"),
        ("num_clients", 0, "num_clients must be an integer of at least 1"),
        ("num_clients", 2.0, "num_clients must be an integer of at least 1"),
        ("num_clients", True, "num_clients must be an integer of at least 1"),
        ("samples_per_client", 0, "samples_per_client must be an integer of at least 1"),
        ("shards_per_client", 0, "shards_per_client must be an integer of at least 1"),
        ("test_samples", -1, "test_samples must be an integer of at least 1"),
        ("seed", -1, "seed must be an integer of at least 0"),
        ("validation_fraction", 1.0, r"validation_fraction must lie in \[0, 1\)"),
        ("validation_fraction", -0.1, r"validation_fraction must lie in \[0, 1\)"),
        ("validation_fraction", float("nan"), r"validation_fraction must lie in \[0, 1\)"),
        ("partition_by", "", "partition_by must be a non-empty text"),
        ("label_column", "", "label_column must be a non-empty text"),
        ("classes", 0, "classes must be an integer of at least 1"),
        ("image_size", 0, "image_size must be an integer of at least 1"),
        ("image_size", 32.0, "image_size must be an integer of at least 1"),
        ("image_channels", 2, "image_channels must be 1 or 3, got 2"),
        ("image_channels", True, "image_channels must be an integer of at least 1"),
        ("standardise", "clients", "unknown way to standardise 'clients'; did you mean 'client'"),
        ("classes_per_client", 0, "classes_per_client must be an integer of at least 1"),
        ("validation_from", "tests", "unknown source of validation samples 'tests'; .* 'test'"),
        ("validation_samples", 0, "validation_samples must be an integer of at least 1"),
    ],
)
def test_bad_value_is_refused(field: str, value: object, message: str) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(SettingsError, match=message):
        DataSettings(**arguments)


def test_shards_must_divide_the_samples() -> None:
    DataSettings(partitioner="shards", samples_per_client=30, shards_per_client=3)
    with pytest.raises(SettingsError, match=r"samples_per_client \(31\) must be a multiple"):
        DataSettings(partitioner="shards", samples_per_client=31, shards_per_client=3)


def test_one_kind_of_sample_column() -> None:
    with pytest.raises(SettingsError, match="image_column or audio_column, not both"):
        DataSettings(image_column="a", audio_column="b")


def test_several_data_sets_are_named_with_commas_between() -> None:
    settings = DataSettings(dataset="a, ./b ,c/d", partitioner="dataset", num_clients=6)
    assert settings.datasets == ("a", "./b", "c/d")
    # A comma is part of the name where there is one data set.
    assert DataSettings(dataset="./2024, spring").datasets == ("./2024, spring",)


TWO = {"dataset": "a,b", "partitioner": "dataset", "num_clients": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (TWO | {"dataset": "a"}, "'dataset' gives each client .* there is only 'a': name several"),
        (TWO | {"dataset": "a,,b"}, "dataset has an empty name between its commas"),
        (TWO | {"dataset": "a,b,"}, "dataset has an empty name between its commas"),
        (TWO | {"dataset": "a,b, a"}, "dataset names 'a' twice"),
        (TWO | {"num_clients": 3}, "num_clients is 3, but 2 data sets are for 2 clients, or a mu"),
        (TWO | {"num_clients": 1}, "num_clients is 1, but 2 data sets are for 2 clients, or a mu"),
        (TWO | {"partition_by": "x"}, "'dataset' has no use for partition_by, which is 'x'"),
        (
            {"partitioner": "classes", "partition_by": "x"},
            "'classes' has no use for partition_by, which is 'x'",
        ),
        (
            {"partitioner": "classes", "classes": 5},
            "classes_per_client is 2, but 5 classes do not divide by it",
        ),
        (
            {"partitioner": "classes", "classes": 6, "num_clients": 5},
            "num_clients is 5, but 6 classes with classes_per_client 2 are for 3 clients",
        ),
        (
            {"validation_samples": 9},
            "validation_samples goes with validation_from 'test'; of its own .* validation_fracti",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DataSettings(**changes)


def test_what_goes_together() -> None:
    assert DataSettings(**TWO | {"num_clients": 4}).datasets == ("a", "b")  # type: ignore[arg-type]
    DataSettings(partitioner="classes", classes=6, num_clients=9)
    DataSettings(partitioner="classes", num_clients=7)  # the number of classes is not known yet
    DataSettings(validation_from="test", validation_samples=9)
