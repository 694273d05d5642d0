"""Whole AdaSplit runs: in this process and on Ray, stopped and resumed, tested on either side."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulations.adasplit_parts import make_strategy
from simulations.preflight import check
from simulations.recorder import Recorder
from simulations.report import write_plots
from simulations.run_models import split_model
from simulations.run_name import read_run_name
from simulations.runner import resume, run
from simulations.settings import RunSettings
from strategies import AdaSplit
from tests.simulations.changed_settings import settings_with
from tests.simulations.same_results import differences, states_of
from tests.simulations.small_runs import Stopped, arrays_of, run_undrawn, stopped_after, table_of
from zerofl_flwr.errors import DataError, SettingsError

pytestmark = pytest.mark.usefixtures("no_plots")

SMALL: dict[str, Any] = {
    "algorithm": "adasplit",
    "num-clients": 8,
    "clients-per-round": 4,
    "rounds": 4,
    "validation-fraction": 0.2,
    "batch-size": 16,
    "iterations-per-round": 3,
    "kappa": 0.25,
    "eta": 0.5,
    "backend": "in-process",
    "seed": 3,
}


def small(**changes: Any) -> RunSettings:
    return settings_with(SMALL, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_undrawn(small(), tmp_path_factory.mktemp("whole") / "run")


def test_the_folder_tells_phases_picks_losses_and_each_clients_accuracy(whole: Path) -> None:
    rounds = pd.read_csv(whole / "rounds.csv")
    clients = pd.read_csv(whole / "clients.csv")
    tests = pd.read_csv(whole / "tests.csv")
    assert rounds["phase"].tolist() == ["local", "global", "global", "global"]
    assert rounds["picked"].tolist() == [0, 2, 2, 2]
    assert rounds["server_loss"].isna().tolist() == [True, False, False, False]
    assert clients.groupby("round").size().tolist() == [4] * 4
    assert clients["num_examples"].tolist() == [48] * 16
    picked = clients[clients["picked"]]
    assert picked["server_loss"].notna().all()
    assert clients[~clients["picked"]]["server_loss"].isna().all()
    assert tests.groupby("round").size().tolist() == [8] * 4
    assert tests.groupby("round")["accuracy"].mean().tolist() == pytest.approx(
        rounds["accuracy"].tolist()
    )
    # Who has not trained yet is tested all the same, and says so.
    assert 0 < tests[tests["round"] == 1]["trained"].sum() == 4
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == rounds["phase"].tolist()
    assert len(lines[0]["tests"]) == 8


def test_the_local_phase_moves_the_first_part_and_nothing_else(whole: Path) -> None:
    clients = pd.read_csv(whole / "clients.csv")
    first = clients.groupby("partition_id")["round"].transform("min") == clients["round"]
    parts = split_model(small())
    common = sum(p.numel() * 4 for part in (parts.client, parts.head) for p in part.parameters())
    assert (clients[first]["downlink_bytes"] > common).all()
    assert (clients[~first]["downlink_bytes"] < 1000).all()
    silent = clients[~clients["picked"]]
    assert (silent["uplink_bytes"] < 1000).all()
    dense = 48 * 16 * 8 * 8 * 4  # three batches of 16 images, 16 channels of 8x8
    # Half of what a ReLU gives are zeros, and CSR leaves them out.
    assert clients[clients["picked"]]["uplink_bytes"].between(0.6 * dense, dense).all()


def test_the_model_file_names_client_head_and_server_part(whole: Path) -> None:
    names = list(arrays_of(whole / "model.npz"))
    assert names == list(split_model(small()).state_dict())
    with np.load(whole / "mask_summary.npz") as masks:
        picked = pd.read_csv(whole / "clients.csv").query("picked")["partition_id"]
        assert masks["clients"].tolist() == sorted(set(picked))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ray_ends_bit_equal(whole: Path, tmp_path: Path) -> None:
    assert differences(whole, run(small(backend="ray"), tmp_path / "run")) == []


@pytest.mark.parametrize("mask", ["soft", "hard"])
@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_ends_as_an_unbroken_one(tmp_path: Path, mask: str, stop: int) -> None:
    settings = small(mask=mask)
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(stop), pytest.raises(Stopped):
        run(settings, tmp_path / "resumed")
    assert differences(unbroken, resume(tmp_path / "resumed")) == []


def test_a_run_resumes_from_rounds_before_the_stop(tmp_path: Path) -> None:
    settings = small(checkpoint_every=2, server_gradient="selected", client_weights="averaged")
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(3), pytest.raises(Stopped):
        run(settings, tmp_path / "resumed")
    assert differences(unbroken, resume(tmp_path / "resumed")) == []


def test_masks_that_do_not_fit_into_memory_change_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A megabyte holds one of these masks with its moments.
    assert differences(whole, run(small(mask_memory_mb=1), tmp_path / "run")) == []


def test_tests_at_the_server_say_the_same(whole: Path, tmp_path: Path) -> None:
    at_server = run(small(inference="server"), tmp_path / "run")
    columns = ["round", "partition_id", "num_examples", "trained", "accuracy", "loss"]
    first, second = (table_of(folder, "tests")[columns] for folder in (whole, at_server))
    pd.testing.assert_frame_equal(first, second)
    assert arrays_of(whole / "model.npz") == arrays_of(at_server / "model.npz")


def test_the_pictures_of_the_method_are_drawn(whole: Path) -> None:
    drawn = {path.stem for path in write_plots(whole)}
    assert drawn >= {"client_accuracy", "picks", "ucb_terms", "client_masks", "losses"}
    assert not drawn & {"zero_positions", "overlap_matrix", "nonzero_ratio", "mask_overlap"}


def test_runs_that_share_a_folder_of_states_do_not_touch_each_other(
    whole: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "states"
    settings = small(state_dir=str(shared))
    with stopped_after(2), pytest.raises(Stopped):
        run(settings, tmp_path / "first")
    second = run(settings, tmp_path / "second")
    assert states_of(second, shared) == states_of(whole)
    # The second run has gone on to round 4; the first still finds its states of round 2.
    first = resume(tmp_path / "first")
    assert states_of(first, shared) == states_of(second, shared) == states_of(whole)
    assert len(list(shared.iterdir())) == 2
    assert not (first / "clients").exists()
    assert table_of(first, "clients").equals(table_of(whole, "clients"))


def test_overwriting_a_run_makes_a_new_name_which_resuming_keeps(tmp_path: Path) -> None:
    Recorder.create(tmp_path, small()).close()
    before = read_run_name(tmp_path)
    recorder = Recorder.create(tmp_path, small(), overwrite=True)
    recorder.close()
    assert recorder.run_name == read_run_name(tmp_path) != before
    with stopped_after(1), pytest.raises(Stopped):
        run(small(), tmp_path, overwrite=True)
    kept = read_run_name(tmp_path)
    resumed = Recorder.resume(tmp_path)
    resumed.close()
    assert resumed.run_name == kept == read_run_name(tmp_path)
    (tmp_path / "run_name.txt").unlink()
    with pytest.raises(DataError, match="run_name"):
        Recorder.resume(tmp_path)


def test_the_server_has_the_threads_of_the_settings_whatever_cpus_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)), raising=False)
    monkeypatch.setattr("strategies.adasplit.limit_threads", used.append)
    run(small(rounds=1, kappa=0.0, server_threads=3), tmp_path / "run")
    assert used
    assert set(used) == {3}
    assert small().split.server_threads == 2
    with pytest.raises(SettingsError, match="server_threads is 0; it must be at least 1"):
        small(server_threads=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kappa": 0.99, "rounds": 1}, None),
        ({"cut": "9"}, "cut"),
        ({"cut": "conv3"}, "conv"),
        ({"rounds": 2, "kappa": 0.6, "client_weights": "relayed"}, None),
        ({"validation_fraction": 0.0}, "no validation samples"),
    ],
)
def test_what_cannot_run_is_refused_at_the_start(
    changes: dict[str, Any], message: str | None
) -> None:
    if message is None:
        check(small(**changes))
        assert isinstance(small(**changes), RunSettings)
        return
    with pytest.raises(SettingsError, match=message):
        check(small(**changes))


def test_the_strategy_has_the_runs_name_for_itself() -> None:
    strategy = make_strategy(small(), None)
    assert isinstance(strategy, AdaSplit)
    assert repr(strategy).startswith("AdaSplit(rounds=4, kappa=0.25, eta=0.5")
