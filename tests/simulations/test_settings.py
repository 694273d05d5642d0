"""A run's settings: one flat list of keys, checked, and written so that they come back."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simulations.data_settings import DataSettings
from simulations.settings import (
    RunSettings,
    SimulationSettings,
    all_fields,
    help_texts,
    read_config,
    type_of,
)
from tests.simulations.setting_defaults import default_of
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.recommended import recommended_settings
from zerofl_flwr.settings import ZeroFLSettings
from zerofl_flwr.training import TrainingSettings

# Something other than the default for every key, such that all of them work together.
OTHERS: dict[str, Any] = {
    "algorithm": "zerofl",
    "rounds": 40,
    "clients-per-round": 5,
    "model": "resnet18",
    "masked": "conv2,fc1",
    "strategy": "fedadam",
    "server-learning-rate": 0.02,
    "server-momentum": 0.5,
    "server-tau": 0.01,
    "proximal-mu": 0.1,
    "evaluate-every": 2,
    "fraction-evaluate": 0.25,
    "backend": "in-process",
    "cpus-per-client": 2,
    "gpus-per-client": 0.5,
    "ray-address": "127.0.0.1:6379",
    "device": "cuda:1",
    "checkpoint-every": 3,
    "tensorboard": True,
    "dataset": "uoft-cs/cifar10",
    "dataset-config": "plain_text",
    "partitioner": "shards",
    "alpha": 0.3,
    "num-clients": 20,
    "samples-per-client": 300,
    "partition-by": "label",
    "shards-per-client": 3,
    "validation-fraction": 0.2,
    "test-samples": 100,
    "audio-features": "mfcc",
    "image-column": "img",
    "audio-column": "audio",
    "label-column": "label",
    "seed": 7,
    "learning-rate": 0.05,
    "learning-rate-end": 0.01,
    "momentum": 0.9,
    "weight-decay": 0.0005,
    "batch-size": 16,
    "local-epochs": 2,
    "sparsity": 0.9,
    "sparsity-schedule": "cubic",
    "sparsity-start": 0.3,
    "sparsity-rounds": 20,
    "mask-ratio": 0.1,
    "mask-ratio-schedule": "linear",
    "mask-ratio-start": 0.4,
    "mask-ratio-rounds": 10,
    "activation-sparsity": 0.8,
    "gradient-sparsity": 0.1,
    "topk-period": 4,
    "rule": "top-k-diff",
    "aggregation": "senders",
    "freeze-mask-after-round": 30,
    "sparse-downlink": False,
    "on-failure": "raise",
    "min-replies": 2,
    "per-client": True,
}
# These two cannot be set together with others above.
EXCLUDED = {"audio-column": "image-column", "per-client": "aggregation"}


def combined(key: str, value: Any) -> dict[str, Any]:
    mapping = OTHERS | {key: value}
    for one, other in EXCLUDED.items():
        mapping.pop(other if key == one else one)
    return mapping


def test_the_list_of_keys_is_complete_and_each_is_unique() -> None:
    keys = [key for _, key, _ in all_fields()]
    assert keys == list(OTHERS)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("key", OTHERS)
def test_every_setting_comes_back_from_a_mapping_and_from_toml(key: str, tmp_path: Path) -> None:
    mapping = combined(key, OTHERS[key])
    settings = RunSettings.from_mapping(mapping)
    group, field = next((g, f) for g, k, f in all_fields() if k == key)
    assert getattr(getattr(settings, group), field.name) == OTHERS[key]
    if key != "algorithm":  # there is one so far
        assert OTHERS[key] != default_of(field)
    assert RunSettings.from_mapping(settings.to_mapping()) == settings
    settings.save(tmp_path / "config.toml")
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == settings.to_mapping()
    assert RunSettings.from_mapping(read_config(tmp_path / "config.toml")) == settings


def test_nothing_given_is_the_defaults() -> None:
    assert RunSettings.from_mapping({}) == RunSettings(zerofl=recommended_settings(10))
    assert RunSettings.from_mapping({"paper": True}).zerofl == ZeroFLSettings()
    assert RunSettings().seed == 0
    assert RunSettings.from_mapping({"seed": 5}).seed == 5


def test_what_is_unset_is_left_out_of_the_mapping() -> None:
    unset = [key for group, key, field in all_fields() if field.default is None]
    assert {"ray-address", "masked", "sparsity-start"} < set(unset)
    assert not set(unset) & set(RunSettings().to_mapping())


def test_an_empty_text_unsets_an_optional_setting() -> None:
    for group, key, field in all_fields():
        if type_of(group, field)[1]:
            assert RunSettings.from_mapping({key: ""}) == RunSettings.from_mapping({})
    with pytest.raises(SettingsError, match="rounds is ''; expected a int"):
        RunSettings.from_mapping({"rounds": ""})


def test_paper_turns_what_is_not_given_to_the_papers_settings() -> None:
    paper = RunSettings.from_mapping({"paper": True, "model": "femnist_cnn", "rounds": 100})
    assert paper.simulation.masked == "conv1,conv2,fc1"
    assert paper.zerofl == ZeroFLSettings()
    study = RunSettings.from_mapping({"paper": False, "model": "femnist_cnn", "rounds": 100})
    assert study.simulation.masked is None
    assert study.zerofl == recommended_settings(100)
    assert RunSettings.from_mapping({"paper": True, "model": "resnet18"}).simulation.masked is None
    for settings in (paper, study):  # a config.toml says it all, without the flag
        assert "paper" not in settings.to_mapping()
        assert RunSettings.from_mapping(settings.to_mapping()) == settings


def test_what_is_given_wins_over_both_sets_of_defaults() -> None:
    given = {"masked": "fc1", "aggregation": "senders", "sparsity-schedule": "constant"}
    for paper in (True, False):
        settings = RunSettings.from_mapping(given | {"paper": paper})
        assert settings.simulation.masked == "fc1"
        assert settings.zerofl == ZeroFLSettings(aggregation="senders")


def test_empty_texts_leave_the_defaults_that_depend_on_others() -> None:
    # As pyproject.toml lists them for `flwr run`.
    keys = ("sparsity-schedule", "sparsity-start", "sparsity-rounds", "aggregation")
    assert RunSettings.from_mapping(dict.fromkeys(keys, "")) == RunSettings.from_mapping({})
    given = dict.fromkeys(keys, "") | {"sparsity-schedule": "constant"}
    assert RunSettings.from_mapping(given).zerofl == ZeroFLSettings(aggregation="senders")


def test_paper_is_a_yes_or_no() -> None:
    with pytest.raises(SettingsError, match="paper is 1; expected a bool"):
        RunSettings.from_mapping({"paper": 1})


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("sparstiy", "sparsity"),
        ("clients_per_round", "clients-per-round"),
        ("learning-rat", "learning-rate"),
        ("mask-ration", "mask-ratio"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, nearest: str) -> None:
    message = f"unknown setting '{key}'; did you mean '{nearest}'"
    with pytest.raises(SettingsError, match=message):
        RunSettings.from_mapping({key: 1})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rounds", 2.5, "int"),
        ("rounds", "3", "int"),
        ("rounds", True, "int"),
        ("sparsity", "0.9", "float"),
        ("sparsity", True, "float"),
        ("sparsity", [0.9], "float"),
        ("model", 18, "str"),
        ("sparse-downlink", 1, "bool"),
        ("sparse-downlink", "yes", "bool"),
        ("ray-address", 6379, "str"),
        ("samples-per-client", 300.0, "int"),
        ("samples-per-client", False, "int"),
    ],
)
def test_a_wrong_type_is_refused_by_key(key: str, value: Any, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RunSettings.from_mapping({key: value})
    assert str(caught.value) == f"{key} is {value!r}; expected a {expected}"


def test_a_whole_number_stands_for_a_float() -> None:
    settings = RunSettings.from_mapping({"sparsity": 0, "learning-rate": 1})
    assert settings.zerofl.sparsity == 0.0
    assert type(settings.training.learning_rate) is float


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "zero"}, "unknown algorithm 'zero'; did you mean 'zerofl'"),
        ({"backend": "rey"}, "unknown backend 'rey'; did you mean 'ray'"),
        ({"strategy": "fedadams"}, "unknown strategy 'fedadams'; did you mean 'fedadam'"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"clients_per_round": 0}, "clients_per_round is 0; it must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"cpus_per_client": 0}, "cpus_per_client is 0"),
        ({"server_learning_rate": 0.0}, r"server_learning_rate is 0\.0; it must be a positive"),
        ({"server_tau": float("nan")}, "server_tau is nan; it must be a positive number"),
        ({"proximal_mu": -0.1}, r"proximal_mu is -0\.1; it must be a number from 0"),
        ({"proximal_mu": float("inf")}, "proximal_mu is inf"),
        ({"gpus_per_client": float("nan")}, "gpus_per_client is nan"),
        ({"checkpoint_every": -1}, "checkpoint_every is -1; it must be a number from 0"),
        ({"fraction_evaluate": 1.1}, r"fraction_evaluate is 1\.1; it must be in \[0, 1\]"),
        ({"server_momentum": -0.1}, r"server_momentum is -0\.1; it must be in \[0, 1\]"),
        ({"device": "gpu"}, "device is 'gpu'; it must be cpu or cuda"),
        ({"device": "cuda:x"}, "device is 'cuda:x'"),
    ],
)
def test_what_runs_nowhere_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SimulationSettings(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients-per-round": 11}, "clients-per-round is 11, but there are only 10 clients"),
        ({"min-replies": 11}, "min-replies is 11, but only 10 clients train in a round"),
        ({"sparsity": 1.5}, "sparsity must lie between 0 and 1"),
        ({"learning-rate": -1.0}, "learning_rate is -1.0"),
        ({"partitioner": "idd"}, "did you mean 'iid'"),
    ],
)
def test_groups_are_checked_together_and_each_by_itself(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        RunSettings.from_mapping(changes)


def test_every_setting_has_a_help_text_from_its_docstring() -> None:
    for group, key, field in all_fields():
        text = help_texts(group).get(field.name, "")
        assert len(text) > 10, key
        assert text.endswith("."), (key, text)


@pytest.mark.parametrize(
    ("group", "owner"),
    [
        ("simulation", SimulationSettings),
        ("data", DataSettings),
        ("training", TrainingSettings),
        ("zerofl", ZeroFLSettings),
    ],
)
def test_the_docstrings_describe_the_settings_and_nothing_else(group: str, owner: Any) -> None:
    assert set(help_texts(group)) == {field.name for field in dataclasses.fields(owner)}


def test_help_texts_join_lines_and_know_shared_descriptions() -> None:
    texts = help_texts("data")
    assert texts["image_column"] == texts["label_column"]
    assert "\n" not in texts["partitioner"]
    assert texts["alpha"].startswith("Concentration of the Dirichlet distribution, greater than 0.")


def test_a_local_data_folder_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-0.parquet").touch()
    monkeypatch.chdir(tmp_path)
    settings = RunSettings.from_mapping({"dataset": "data"})
    assert settings.resolved().data.dataset == str(tmp_path / "data")
    assert settings.resolved().resolved() == settings.resolved()
    hub = RunSettings.from_mapping({"dataset": "uoft-cs/cifar10"})
    assert hub.resolved() is hub
    (tmp_path / "digits").mkdir()
    assert RunSettings().resolved().data.dataset == "digits"  # the embedded ones


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"rounds = ", r"config\.toml is not valid TOML"),
        (b"model = '\xff'", r"config\.toml is not valid TOML"),
        (None, r"there is no config file .*config\.toml"),
    ],
)
def test_a_config_file_that_cannot_be_read_is_a_clear_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_config(path)


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_config(tmp_path)


def test_names_survive_in_any_script(tmp_path: Path) -> None:
    settings = RunSettings.from_mapping({"dataset": "schön/データ", "partition-by": 'a "name"\\'})
    settings.save(tmp_path / "config.toml")
    assert RunSettings.from_mapping(read_config(tmp_path / "config.toml")) == settings
