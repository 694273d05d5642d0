"""A run's settings: one flat list of keys, checked, and written so that they come back."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from simulations.setting_groups import all_fields, fields_of, type_of
from simulations.settings import RunSettings, read_config
from simulations.simulation_settings import STRATEGIES, SimulationSettings
from tests.simulations.setting_defaults import default_of
from tests.simulations.setting_values import CASES, COMBINED, combined
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.recommended import recommended_settings
from zerofl_flwr.settings import ZeroFLSettings


def test_the_list_of_keys_is_complete_and_each_is_unique() -> None:
    keys = [key for _, key, _ in all_fields()]
    assert len(set(keys)) == len(keys)
    for algorithm, mapping in COMBINED.items():
        assert {key for _, key, _ in fields_of(algorithm)} == set(mapping)
    assert set(keys) == {key for _, key in CASES}


@pytest.mark.parametrize(("algorithm", "key"), CASES)
def test_every_setting_comes_back_from_a_mapping_and_from_toml(
    algorithm: str, key: str, tmp_path: Path
) -> None:
    settings = RunSettings.from_mapping(combined(algorithm, key))
    group, field = next((g, f) for g, k, f in fields_of(algorithm) if k == key)
    value = COMBINED[algorithm][key]
    assert getattr(getattr(settings, group), field.name) == value
    if (algorithm, key) != ("zerofl", "algorithm"):
        assert value != default_of(field)
    assert RunSettings.from_mapping(settings.to_mapping()) == settings
    settings.save(tmp_path / "config.toml")
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == settings.to_mapping()
    assert RunSettings.from_mapping(read_config(tmp_path / "config.toml")) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "adasplit", "sparsity": 0.9}, "sparsity has no effect with .* adasplit"),
        ({"algorithm": "adasplit", "learning-rate": 0.05}, "learning-rate has no effect"),
        ({"algorithm": "adasplit", "aggregation": "senders"}, "aggregation has no effect"),
        ({"algorithm": "adasplit", "paper": True}, "paper is a choice of zerofl"),
        ({"algorithm": "adasplit", "optimizer": "adam"}, "optimizer has no effect"),
        ({"algorithm": "baseline", "sparsity": 0.9}, "sparsity has no effect with .* baseline"),
        ({"algorithm": "baseline", "masked": "fc1"}, "masked has no effect"),
        ({"algorithm": "baseline", "paper": True}, "paper is a choice of zerofl"),
        ({"kappa": 0.5}, "kappa has no effect with the algorithm zerofl"),
        ({"algorithm": 1}, "algorithm is 1; expected a str"),
    ],
)
def test_a_setting_of_another_method_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        RunSettings.from_mapping(values)


def test_what_other_methods_have_by_default_may_be_said() -> None:
    # `flwr run` passes every key that pyproject.toml lists.
    every = {key: default_of(field) for _, key, field in all_fields()}
    listed = {key: "" if value is None else value for key, value in every.items()}
    zerofl = RunSettings.from_mapping(listed)
    assert zerofl == RunSettings.from_mapping({})
    adasplit = RunSettings.from_mapping(listed | {"algorithm": "adasplit"})
    assert adasplit == RunSettings.from_mapping({"algorithm": "adasplit"})
    baseline = RunSettings.from_mapping(listed | {"algorithm": "baseline"})
    assert baseline == RunSettings.from_mapping({"algorithm": "baseline"})
    assert not {"sparsity", "kappa", "masked"} & baseline.to_mapping().keys()
    assert "sparsity" not in adasplit.to_mapping()
    assert "kappa" not in zerofl.to_mapping()


def test_who_tests_depends_on_the_method_unless_it_is_said() -> None:
    assert SimulationSettings().evaluating_fraction == 0
    assert SimulationSettings(algorithm="adasplit").evaluating_fraction == 1
    assert SimulationSettings(algorithm="baseline").evaluating_fraction == 1
    assert (
        SimulationSettings(algorithm="adasplit", fraction_evaluate=0.5).evaluating_fraction == 0.5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "fedavgs"}, "unknown strategy 'fedavgs'; did you mean 'fedavg'"),
        ({"strategy": "scaffold", "optimizer": "adam"}, "scaffold needs optimizer sgd, not adam"),
        ({"strategy": "fednova", "optimizer": "adam"}, "fednova needs optimizer sgd, not adam"),
        ({"strategy": "scaffold", "momentum": 0.9}, r"scaffold needs sgd without .* is 0\.9"),
        ({"min-replies": 11}, "min-replies is 11, but only 10 clients train in a round"),
        ({"min-replies": 0}, "min_replies is 0; it must be at least 1"),
        ({"on-failure": "skipp"}, "unknown on_failure 'skipp'; did you mean 'skip'"),
    ],
)
def test_a_baseline_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        RunSettings.from_mapping({"algorithm": "baseline"} | changes)


@pytest.mark.parametrize("strategy", ["scaffold", "fednova", "alone"])
def test_zerofl_wraps_flowers_strategies_only(strategy: str) -> None:
    message = f"strategy is '{strategy}', which is a baseline: zerofl wraps one of fedavg, "
    with pytest.raises(SettingsError, match=message):
        RunSettings.from_mapping({"strategy": strategy})
    settings = RunSettings.from_mapping({"strategy": strategy, "algorithm": "baseline"})
    assert settings.simulation.strategy == strategy


def test_of_some_methods_clients_keep_something() -> None:
    def keep(**values: Any) -> bool:
        return RunSettings.from_mapping(values).keeps_client_states

    assert keep(algorithm="adasplit")
    assert not keep()
    kept = {s: keep(algorithm="baseline", strategy=s) for s in STRATEGIES}
    assert [strategy for strategy in STRATEGIES if kept[strategy]] == ["scaffold", "alone"]


def test_slow_clients_must_be_there() -> None:
    assert RunSettings.from_mapping({"slow": "9:2"}).slow_clients == {9: 2.0}
    with pytest.raises(SettingsError, match=r"slow names partition 10, .* only 10 clients"):
        RunSettings.from_mapping({"slow": "10:2"})


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
    for algorithm in ("adasplit", "baseline"):
        states = RunSettings.from_mapping({"algorithm": algorithm, "state-dir": "states"})
        assert states.resolved().to_mapping()["state-dir"] == str(tmp_path / "states")
        assert states.resolved().resolved() == states.resolved()


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
