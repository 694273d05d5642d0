"""Whole runs: in this process and on Ray, stopped and resumed, with clients that fail."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import ray
import torch
from flwr.common import Scalar

from simulations.recorder import Recorder
from simulations.runner import resume, run
from simulations.settings import RunSettings, read_config
from tests.simulations.parquet_folders import pictures, write_split
from tests.simulations.same_results import differences
from tests.simulations.small_runs import (
    Stopped,
    arrays_of,
    small,
    stopped_after,
)
from zerofl_flwr.client import ZeroFLClient
from zerofl_flwr.errors import ClientFailedError, DataError, RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array

SETTINGS = small(learning_rate_end=0.02, fraction_evaluate=0.25)
ON_RAY = small(learning_rate_end=0.02, fraction_evaluate=0.25, backend="ray")


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of one whole run in this process, plots and all."""
    return run(SETTINGS, tmp_path_factory.mktemp("in-process") / "run")


@pytest.fixture
def ray_of_this_process() -> Iterator[None]:
    """Have Ray running before the runs start."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def last_round(folder: Path) -> int:
    return int(pd.read_csv(folder / "rounds.csv")["round"].max())


def test_the_folder_holds_everything(in_process: Path) -> None:
    names = {str(path.relative_to(in_process)) for path in in_process.rglob("*") if path.is_file()}
    pictures = [
        "accuracy_by_round",
        "accuracy_by_megabytes",
        "nonzero_ratio",
        "mask_overlap",
        "zero_positions",
        "overlap_matrix",
        "client_accuracy",
        "partitions",
    ]
    assert names == {
        "config.toml",
        "environment.json",
        "rounds.csv",
        "clients.csv",
        "traffic.csv",
        "layers.csv",
        "tests.csv",
        "partitions.csv",
        "metrics.jsonl",
        "model.npz",
        "zero_positions.npz",
        "checkpoint.npz",
        "flower.log",
        ".lock",
        *(f"plots/{name}.png" for name in pictures),
    }


def test_the_tables_fit_together(in_process: Path) -> None:
    rounds = pd.read_csv(in_process / "rounds.csv")
    clients = pd.read_csv(in_process / "clients.csv")
    layers = pd.read_csv(in_process / "layers.csv")
    assert rounds["round"].tolist() == [0, 1, 2, 3]
    assert rounds["learning_rate"].tolist()[1:] == pytest.approx([0.1, 0.02**0.5 * 0.1**0.5, 0.02])
    assert rounds["replies"].tolist() == [0, 4, 4, 4]
    assert rounds["accuracy"].between(0, 1).all()
    assert rounds["client_accuracy"].iloc[1:].between(0, 1).all()
    assert clients["failure"].isna().all()
    per_round = clients.groupby("round")
    for column in ("uplink_bytes", "downlink_bytes", "train_seconds"):
        assert per_round[column].sum().tolist() == pytest.approx(rounds[column].tolist()[1:])
    weighted = (clients["train_loss"] * clients["num_examples"]).groupby(clients["round"]).sum()
    mean = weighted / per_round["num_examples"].sum()
    assert mean.tolist() == pytest.approx(rounds["train_loss"].tolist()[1:])
    assert layers["layer"].tolist() == ["conv2.weight", "fc1.weight"] * 3
    assert layers["nonzero_ratio"].between(0.1, 1).all()
    lines = [json.loads(line) for line in (in_process / "metrics.jsonl").read_text().splitlines()]
    assert [line["uplink_bytes"] for line in lines] == rounds["uplink_bytes"].tolist()[1:]


def test_the_loss_falls_and_the_uplink_is_sparse(in_process: Path) -> None:
    rounds = pd.read_csv(in_process / "rounds.csv")
    assert rounds["loss"].iloc[-1] < rounds["loss"].iloc[0]
    with np.load(in_process / "model.npz") as model:
        dense_bytes = 4 * sum(array.nbytes for array in model.values())
    # Three tenths of the masked weights, in 6 bytes each.
    assert rounds["uplink_bytes"].iloc[-1] < 0.6 * dense_bytes


def test_the_json_lines_are_strict(in_process: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    lines = (in_process / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line, parse_constant=refuse) for line in lines]
    rounds = pd.read_csv(in_process / "rounds.csv")["round"].tolist()
    assert [line["round"] for line in parsed] == rounds[-len(parsed) :]
    assert parsed


def test_flowers_own_talk_is_in_the_log(in_process: Path) -> None:
    assert "Starting Flower ServerApp" in (in_process / "flower.log").read_text()
    handlers = [type(handler).__name__ for handler in logging.getLogger("flwr").handlers]
    assert "FileHandler" not in handlers


def test_the_config_runs_again_to_the_same_result(
    in_process: Path, tmp_path: Path, no_plots: None
) -> None:
    settings = RunSettings.from_mapping(read_config(in_process / "config.toml"))
    assert settings == SETTINGS
    assert differences(in_process, run(settings, tmp_path / "again")) == []


@pytest.mark.slow
@pytest.mark.usefixtures("no_plots")
def test_ray_ends_as_one_process_does(in_process: Path, tmp_path: Path) -> None:
    folder = run(ON_RAY, tmp_path / "run")
    assert read_config(folder / "config.toml")["backend"] == "ray"
    assert differences(in_process, folder) == []
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("no_plots", "ray_of_this_process")
def test_ray_stopped_and_resumed_ends_as_one_process_that_never_stopped(
    in_process: Path, tmp_path: Path
) -> None:
    with stopped_after(2), pytest.raises(Stopped):
        run(ON_RAY, tmp_path / "run")
    assert last_round(tmp_path / "run") == 2
    assert differences(in_process, resume(tmp_path / "run")) == []
    assert ray.is_initialized()


def test_another_seed_ends_elsewhere(in_process: Path, tmp_path: Path, no_plots: None) -> None:
    other = run(small(seed=4, learning_rate_end=0.02, fraction_evaluate=0.25), tmp_path / "other")
    apart = set(differences(in_process, other))
    assert apart >= {"model.npz: conv1.weight", "clients.csv: partition_id"}
    assert not apart & {"rounds.csv: round", "rounds.csv: sparsity"}


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "fedavg", "rule": "top-k-diff"},
        {"strategy": "fedadam", "server_learning_rate": 0.01},
        {"strategy": "fedavgm", "aggregation": "senders"},
        {"freeze_mask_after_round": 1, "rule": "diff-on-top-k-weights"},
        {"sparsity": 0.0, "mask_ratio": 0.0},
    ],
    ids=["fedavg", "fedadam", "fedavgm", "frozen", "dense"],
)
@pytest.mark.usefixtures("no_plots")
def test_a_resumed_run_ends_as_an_unbroken_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = small(num_clients=4, clients_per_round=2, **changes)
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(2), pytest.raises(Stopped):
        run(settings, tmp_path / "broken")
    assert differences(unbroken, resume(tmp_path / "broken")) == []
    checkpoints = [arrays_of(tmp_path / name / "checkpoint.npz") for name in ("unbroken", "broken")]
    assert checkpoints[0] == checkpoints[1]


@pytest.mark.usefixtures("no_plots")
def test_rounds_after_the_last_checkpoint_are_repeated_and_not_doubled(tmp_path: Path) -> None:
    settings = small(rounds=4, num_clients=4, clients_per_round=2, checkpoint_every=2)
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(3), pytest.raises(Stopped):
        run(settings, tmp_path / "broken")
    assert last_round(tmp_path / "broken") == 3
    assert Recorder.resume(tmp_path / "broken").rounds_done == 2
    assert last_round(tmp_path / "broken") == 2
    assert differences(unbroken, resume(tmp_path / "broken")) == []


def test_a_finished_run_and_a_folder_without_one_are_not_resumed(
    in_process: Path, tmp_path: Path
) -> None:
    before = arrays_of(in_process / "model.npz")
    with pytest.raises(SettingsError, match="is finished: all 3 rounds"):
        resume(in_process)
    assert arrays_of(in_process / "model.npz") == before
    with pytest.raises(DataError, match="holds no run"):
        resume(tmp_path)


def test_a_run_is_not_overwritten_unless_asked(in_process: Path) -> None:
    before = arrays_of(in_process / "model.npz")
    with pytest.raises(SettingsError, match="holds a run already"):
        run(SETTINGS, in_process)
    assert arrays_of(in_process / "model.npz") == before


@pytest.mark.parametrize("strategy", ["fedavgm", "fedyogi", "fedadagrad", "fedadam", "fedprox"])
@pytest.mark.usefixtures("no_plots")
def test_every_wrapped_strategy_runs(tmp_path: Path, strategy: str) -> None:
    settings = small(
        strategy=strategy,
        server_learning_rate=0.01,
        rounds=2,
        num_clients=4,
        clients_per_round=2,
        evaluate_every=2,
    )
    rounds = pd.read_csv(run(settings, tmp_path / "run") / "rounds.csv")
    assert rounds["replies"].tolist() == [0, 2, 2]
    assert rounds["accuracy"].isna().tolist() == [False, True, False]
    assert np.isfinite(rounds["train_loss"].iloc[1:]).all()


@pytest.fixture
def failing_client(monkeypatch: pytest.MonkeyPatch, in_process: Path) -> int:
    """Let a client of the first round run out of memory whenever it trains."""
    whole = ZeroFLClient.fit
    first = int(pd.read_csv(in_process / "clients.csv")["partition_id"][0])

    def fit(
        self: ZeroFLClient, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        if self.partition_id == first:
            raise ClientFailedError("out of memory,\nat batch 3")
        return whole(self, parameters, config)

    monkeypatch.setattr(ZeroFLClient, "fit", fit)
    return first


@pytest.mark.usefixtures("no_plots")
def test_a_client_that_fails_is_named_and_the_round_goes_on(
    tmp_path: Path, failing_client: int
) -> None:
    folder = run(small(rounds=2), tmp_path / "run")
    clients = pd.read_csv(folder / "clients.csv")
    failed = clients[clients["failure"].notna()]
    assert set(failed["partition_id"]) == {failing_client}
    assert failed["failure"].str.startswith(f"client {failing_client}: ").all()
    assert failed["failure"].str.contains("ClientFailedError: out of memory, at batch 3").all()
    assert (failed["uplink_bytes"] == 0).all()
    assert (failed["downlink_bytes"] > 0).all()
    rounds = pd.read_csv(folder / "rounds.csv")
    assert rounds["failures"].iloc[1] == 1
    assert rounds["replies"].iloc[1] == 3
    assert "out of memory" in (folder / "flower.log").read_text()


@pytest.mark.usefixtures("no_plots")
def test_a_failure_ends_the_run_where_that_is_asked_for(
    tmp_path: Path, failing_client: int
) -> None:
    with pytest.raises(RoundFailedError, match=f"round 1: client {failing_client}: .*out of memo"):
        run(small(on_failure="raise"), tmp_path / "run")
    assert not (tmp_path / "run" / "model.npz").exists()


@pytest.mark.usefixtures("no_plots")
def test_training_that_diverges_everywhere_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RoundFailedError, match="round 1: 0 good replies, 1 needed"):
        run(small(learning_rate=1e30), tmp_path / "run")


@pytest.mark.usefixtures("no_plots")
def test_a_watcher_hears_of_every_round(tmp_path: Path) -> None:
    seen: list[int] = []
    run(small(num_clients=4, clients_per_round=2), tmp_path / "run", watch=seen.append)
    assert seen == [1, 2, 3]


@pytest.mark.usefixtures("no_plots")
def test_a_run_leaves_the_number_of_threads_as_it_was(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    settings = small(num_clients=4, clients_per_round=2, rounds=2, cpus_per_client=1)
    try:
        torch.set_num_threads(3)
        with stopped_after(1), pytest.raises(Stopped):
            run(settings, tmp_path / "run")
        assert torch.get_num_threads() == 3
        resume(tmp_path / "run")  # in the same process, after a run that failed
        assert torch.get_num_threads() == 3
        with pytest.raises(SettingsError, match="did you mean 'resnet18'"):
            run(small(model="resnet"), tmp_path / "other")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("no_plots")
def test_a_relative_data_folder_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: dict[str, list[object]] = {"image": list(pictures(20)), "label": [0, 1] * 10}
    for split in ("train", "test"):
        write_split(tmp_path / "own", split, columns)
    monkeypatch.chdir(tmp_path)
    settings = small(
        dataset="own", num_clients=2, clients_per_round=1, rounds=1, model="resnet18", sparsity=0.0
    )
    folder = run(settings, Path("run"))
    assert read_config(folder / "config.toml")["dataset"] == str(tmp_path / "own")
