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
