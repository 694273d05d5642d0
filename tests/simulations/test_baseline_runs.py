"""Whole runs of baselines: on Ray as in this process, stopped and resumed, against each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from simulations.baselines import BaselineClient
from simulations.data import load_data
from simulations.export import export_network
from simulations.preflight import check
from simulations.recorder import Recorder
from simulations.report import write_plots
from simulations.run_models import plain_model
from simulations.run_name import read_run_name
from simulations.runner import resume, run
from simulations.settings import RunSettings
from simulations.simulation_settings import STRATEGIES
from tests.simulations.changed_settings import settings_with
from tests.simulations.same_results import differences, states_of
from tests.simulations.small_runs import Stopped, arrays_of, stopped_after, table_of
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.training import evaluate

pytestmark = pytest.mark.usefixtures("no_plots")

SMALL: dict[str, Any] = {
    "algorithm": "baseline",
    "num-clients": 6,
    "clients-per-round": 3,
    "rounds": 4,
    "samples-per-client": 60,
    "validation-fraction": 0.2,
    "partitioner": "dirichlet",
    "batch-size": 16,
    "backend": "in-process",
    "seed": 3,
}


def small(**changes: Any) -> RunSettings:
    return settings_with(SMALL, **changes)


def options_of(strategy: str) -> dict[str, Any]:
    """Settings that make as much of a strategy's state as it can have."""
    options: dict[str, dict[str, Any]] = {
        "alone": {"optimizer": "adam", "learning_rate": 0.01},
        "fednova": {"momentum": 0.9},
    }
    return options.get(strategy, {})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_run_ends_as_an_unbroken_one(tmp_path: Path, strategy: str) -> None:
    settings = small(strategy=strategy, **options_of(strategy))
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(2), pytest.raises(Stopped):
        run(settings, tmp_path / "resumed")
    resumed = resume(tmp_path / "resumed")
    assert differences(unbroken, resumed) == []
    assert arrays_of(unbroken / "checkpoint.npz") == arrays_of(resumed / "checkpoint.npz")
    assert bool(states_of(unbroken)) == (strategy in ("scaffold", "alone"))
    with np.load(unbroken / "model.npz") as model:
        assert list(model) == list(plain_model(settings).state_dict())


@pytest.mark.parametrize("strategy", ["scaffold", "alone"])
def test_a_run_resumes_from_rounds_before_the_stop(tmp_path: Path, strategy: str) -> None:
    settings = small(strategy=strategy, checkpoint_every=2, **options_of(strategy))
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(3), pytest.raises(Stopped):
        run(settings, tmp_path / "resumed")
    resumed = resume(tmp_path / "resumed")
    assert differences(unbroken, resumed) == []
    assert arrays_of(unbroken / "checkpoint.npz") == arrays_of(resumed / "checkpoint.npz")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ray_ends_bit_equal(tmp_path: Path) -> None:
    here = run(small(strategy="scaffold"), tmp_path / "here")
    on_ray = run(small(strategy="scaffold", backend="ray"), tmp_path / "ray")
    assert differences(here, on_ray) == []
    assert arrays_of(here / "checkpoint.npz") == arrays_of(on_ray / "checkpoint.npz")


def test_fedavg_is_zerofl_without_sparsity_bit_for_bit(tmp_path: Path) -> None:
    baseline = run(small(), tmp_path / "baseline")
    zerofl = RunSettings.from_mapping(
        SMALL
        | {"algorithm": "zerofl", "sparsity": 0.0, "mask-ratio": 0.0, "sparse-downlink": False}
        | {"sparsity-schedule": "constant", "aggregation": "all-clients", "fraction-evaluate": 1.0}
    )
    sparse = run(zerofl, tmp_path / "zerofl")
    assert arrays_of(baseline / "model.npz") == arrays_of(sparse / "model.npz")
    # Both test the same model on the same clients' data.
    columns = ["round", "partition_id", "num_examples", "trained", "accuracy", "loss", "failure"]
    first, second = (table_of(folder, "tests")[columns] for folder in (baseline, sparse))
    pd.testing.assert_frame_equal(first, second)
    means = pd.read_csv(baseline / "tests.csv").groupby("round")["accuracy"].mean()
    rounds = pd.read_csv(baseline / "rounds.csv")
    assert rounds["accuracy"].tolist() == pytest.approx(means.tolist())
    # ZeroFL's accuracy stays that of the server's test, on other data.
    assert pd.read_csv(sparse / "rounds.csv")["accuracy"].notna().all()
    assert pd.read_csv(sparse / "rounds.csv")["round"].tolist() == [0, 1, 2, 3, 4]


def test_fednova_is_fedavg_where_all_take_as_many_steps(tmp_path: Path) -> None:
    equal = {"partitioner": "iid"}
    fedavg = run(small(**equal), tmp_path / "fedavg")
    fednova = run(small(strategy="fednova", **equal), tmp_path / "fednova")
    with np.load(fedavg / "model.npz") as one, np.load(fednova / "model.npz") as other:
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=0, atol=1e-6)


def test_the_folder_tells_of_rounds_clients_and_tests(tmp_path: Path) -> None:
    folder = run(small(strategy="scaffold", rounds=2, evaluate_every=2), tmp_path / "run")
    rounds = pd.read_csv(folder / "rounds.csv")
    assert rounds["round"].tolist() == [1, 2]
    assert rounds["accuracy"].isna().tolist() == [True, False]
    assert rounds["learning_rate"].tolist() == [0.1, 0.1]
    assert rounds["failures"].tolist() == rounds["test_failures"].tolist() == [0, 0]
    assert rounds["test_downlink_bytes"].tolist()[0] == 0
    clients = pd.read_csv(folder / "clients.csv")
    assert clients.groupby("round").size().tolist() == [3, 3]
    assert clients["uplink_bytes"].sum() == rounds["uplink_bytes"].sum()
    # A model and a control variate, in both directions.
    size = 2 * sum(4 * p.numel() for p in plain_model(small()).parameters())
    assert clients["uplink_bytes"].between(size, size + 4000).all()
    assert clients["downlink_bytes"].between(size, size + 4000).all()
    tests = pd.read_csv(folder / "tests.csv")
    assert tests["round"].tolist() == [2] * 6
    assert tests["trained"].all()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("tests") is not None for line in lines] == [False, True]
    drawn = {path.stem for path in write_plots(folder)}
    assert {"accuracy_by_round", "accuracy_by_megabytes", "client_accuracy"} <= drawn


def test_the_server_tests_the_one_model_where_no_client_does(tmp_path: Path) -> None:
    folder = run(small(fraction_evaluate=0.0, rounds=2), tmp_path / "run")
    rounds = pd.read_csv(folder / "rounds.csv")
    assert rounds["round"].tolist() == [0, 1, 2]
    assert not (folder / "tests.csv").exists()
    model = plain_model(small())
    with np.load(folder / "model.npz") as stored:
        model.load_state_dict({name: torch.tensor(stored[name]) for name in stored})
    test = load_data(small().data).test
    outcome = evaluate(model, [tuple(test.tensors)])  # type: ignore[list-item]
    assert rounds["accuracy"].tolist()[-1] == pytest.approx(outcome.accuracy)
    assert rounds["loss"].tolist()[-1] == pytest.approx(outcome.loss, rel=1e-5)


def test_who_trains_alone_sends_nothing_and_keeps_a_network_of_its_own(tmp_path: Path) -> None:
    settings = small(strategy="alone", rounds=2, clients_per_round=2, optimizer="adam")
    folder = run(settings, tmp_path / "run")
    clients = pd.read_csv(folder / "clients.csv")
    assert (clients["uplink_bytes"] < 300).all()
    first = clients.groupby("partition_id")["round"].transform("min") == clients["round"]
    assert (clients[first]["downlink_bytes"] > 100_000).all()
    assert (clients[~first]["downlink_bytes"] < 300).all()
    tests = pd.read_csv(folder / "tests.csv")
    trained = set(clients["partition_id"])
    last = tests[tests["round"] == 2]
    assert set(last[last["trained"]]["partition_id"]) == trained
    rounds = pd.read_csv(folder / "rounds.csv")
    expected = last[last["trained"]]["accuracy"].mean()
    assert rounds["trained_accuracy"].tolist()[-1] == pytest.approx(expected)
    # The networks that were tested last are those that are exported.
    for client in range(6):
        exported = export_network(folder, client)
        model = plain_model(settings)
        model.load_state_dict({k: torch.tensor(v) for k, v in exported.arrays.items()})
        held = load_data(settings.data).partition(client).validation
        accuracy = evaluate(model, [tuple(held.tensors)]).accuracy  # type: ignore[list-item]
        shown = last[last["partition_id"] == client]["accuracy"].item()
        assert shown == pytest.approx(accuracy)
        note = f"client {client} has not trained: its network is the common start"
        assert (note in exported.notes) == (client not in trained)
    with pytest.raises(SettingsError, match="with strategy alone each client has a network of its"):
        export_network(folder)


def test_the_global_model_of_a_baseline_is_exported_without_a_word_of_sparsity(
    tmp_path: Path,
) -> None:
    exported = export_network(run(small(rounds=1), tmp_path / "run"))
    assert (exported.server_round, exported.notes) == (1, ())
    with pytest.raises(SettingsError, match="its method is baseline, where all clients share one"):
        export_network(tmp_path / "run", 0)


def test_a_client_that_fails_is_in_the_tables_and_the_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = BaselineClient.fit

    def fit(self: BaselineClient, parameters: Any, config: Any) -> Any:
        arrays, samples, metrics = whole(self, parameters, config)
        if self.partition_id == 2:
            arrays[1] = arrays[1] * np.float32("nan")
        return arrays, samples, metrics

    monkeypatch.setattr(BaselineClient, "fit", fit)
    folder = run(small(clients_per_round=6, rounds=1), tmp_path / "run")
    clients = pd.read_csv(folder / "clients.csv")
    (failure,) = clients["failure"].dropna()
    assert failure.startswith("client 2, layer conv1.bias, field values: ")
    assert pd.read_csv(folder / "rounds.csv")["failures"].tolist() == [1]


@pytest.mark.parametrize("strategy", ["scaffold", "alone"])
def test_a_client_that_has_lost_what_it_keeps_begins_again(tmp_path: Path, strategy: str) -> None:
    settings = small(strategy=strategy, clients_per_round=6, rounds=3)
    with stopped_after(1), pytest.raises(Stopped):
        run(settings, tmp_path / "run")
    name = read_run_name(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "clients" / name / "client-4")
    folder = resume(tmp_path / "run")
    rounds = pd.read_csv(folder / "rounds.csv")
    assert rounds["failures"].tolist() == rounds["restarts"].tolist() == [0, 1, 0]
    (failed,) = pd.read_csv(folder / "clients.csv").dropna(subset="failure").to_dict("records")
    assert (failed["round"], failed["partition_id"]) == (2, 4)
    assert f"client 4 of run {name}: the state of round 1 is lost" in failed["failure"]


@pytest.mark.parametrize("strategy", ["scaffold", "alone"])
def test_a_run_goes_on_when_all_states_go_while_it_runs(tmp_path: Path, strategy: str) -> None:
    settings = small(strategy=strategy, clients_per_round=6)
    whole = Recorder.finish_round

    def finish_and_lose(recorder: Recorder, number: int, *arguments: Any) -> None:
        whole(recorder, number, *arguments)
        if number == 2:
            shutil.rmtree(tmp_path / "run" / "clients")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "finish_round", finish_and_lose)
        folder = run(settings, tmp_path / "run")
    rounds = pd.read_csv(folder / "rounds.csv").set_index("round")
    assert rounds["restarts"].tolist() == rounds["failures"].tolist() == [0, 0, 6, 0]
    # In round 3 there is no new model; those who train alone are tested with the common start.
    losses = rounds["loss"].tolist()
    assert (losses[2] == pytest.approx(losses[1])) == (strategy == "scaffold")
    trained = pd.read_csv(folder / "tests.csv").groupby("round")["trained"].any()
    assert trained.tolist() == [True, True, strategy == "scaffold", True]
    assert np.isfinite(losses).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"strategy": "alone", "fraction_evaluate": 0.0},
            "with strategy alone there is no network",
        ),
        ({"validation_fraction": 0.0}, "would hold no validation samples"),
    ],
)
def test_what_cannot_be_tested_is_refused_at_the_start(
    changes: dict[str, Any], message: str
) -> None:
    check(small())
    with pytest.raises(SettingsError, match=message):
        check(small(**changes))
