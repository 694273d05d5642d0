"""A grid of methods and seeds."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w
from rich.console import Console
from typer.testing import CliRunner

from simulations import recorder as recorder_module
from simulations import study
from simulations.commands import command
from simulations.runner import run
from simulations.study import run_grid
from simulations.study_grid import StudyRun, read_grid
from tests.simulations.grids import write_grid
from tests.simulations.small_runs import Stopped, small, stopped_after
from zerofl_flwr.errors import SettingsError


def a_run(folder: Path, **changes: Any) -> StudyRun:
    settings = small(num_clients=4, clients_per_round=2, **changes)
    return StudyRun("a method", settings.seed, settings, folder)


def test_a_run_is_finished_when_its_last_file_is_there(tmp_path: Path) -> None:
    cell = a_run(tmp_path)
    assert not cell.is_finished()
    cell.settings.save(tmp_path / "config.toml")
    assert not cell.is_finished()
    (tmp_path / "model.npz").touch()
    assert cell.is_finished()
    message = r"holds a run with other settings; move it away \(its seed is 3 instead of 9\)"
    with pytest.raises(SettingsError, match=message):
        a_run(tmp_path, seed=9).is_finished()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note the commands that would be started; the one of seed 4 fails."""
    commands: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 7 if "seed-4" in command[-2] else 0)

    monkeypatch.setattr(subprocess, "run", fake)
    return commands


def test_what_is_finished_is_skipped_what_is_not_is_resumed_or_started(
    tmp_path: Path, launched: list[list[str]]
) -> None:
    runs = read_grid(write_grid(tmp_path), tmp_path / "out")
    finished, interrupted, fresh = runs
    for cell in (finished, interrupted):
        cell.folder.mkdir(parents=True)
        cell.settings.save(cell.folder / "config.toml")
    (finished.folder / "model.npz").touch()
    (interrupted.folder / "checkpoint.npz").touch()
    text = io.StringIO()
    assert run_grid(runs, jobs=1, console=Console(file=text, width=300)) == 1
    python = [sys.executable, "-m", "simulations", "run"]
    assert launched == [
        [*python, "--resume", str(interrupted.folder)],
        [
            *python,
            "--config",
            str(fresh.folder / "study.toml"),
            "--out",
            str(fresh.folder),
            "--overwrite",
        ],
    ]
    assert text.getvalue().splitlines() == [
        "1 of 3 runs are finished",
        "start   r = .2 [ours], seed 3",
        "done    r = .2 [ours], seed 3",
        "start   Dense, FedAvg, seed 4",
        f"FAILED  Dense, FedAvg, seed 4; see {fresh.folder / 'study.log'}",
    ]


def test_other_settings_in_a_folder_stop_the_study_before_it_starts(
    tmp_path: Path, launched: list[list[str]]
) -> None:
    runs = read_grid(write_grid(tmp_path), tmp_path / "out")
    runs[-1].folder.mkdir(parents=True)
    small().save(runs[-1].folder / "config.toml")
    with pytest.raises(SettingsError, match="other settings"):
        run_grid(runs, jobs=1, console=Console(quiet=True))
    assert launched == []


def call(*arguments: object) -> Any:
    return CliRunner().invoke(command(study._main), [str(argument) for argument in arguments])


def test_the_command_tells_failures_and_errors_apart(
    tmp_path: Path, launched: list[list[str]]
) -> None:
    grid = write_grid(tmp_path)
    assert call(grid, "--out", tmp_path / "out").exit_code == 1
    good = {"base": "base.toml", "method": [{"name": "x", "seeds": [3]}]}
    assert call(write_grid(tmp_path, good), "--out", tmp_path / "good").exit_code == 0
    bad = call(write_grid(tmp_path, {"method": []}), "--out", tmp_path / "out")
    assert bad.exit_code == 2
    assert "error:" in bad.output
    assert "'base' is missing" in bad.output
    assert call(grid, "--jobs", 0).exit_code == 2


def test_a_study_of_real_processes_finishes_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = write_grid(
        tmp_path,
        {
            "base": "base.toml",
            "method": [
                {"name": "sparse", "seeds": [3]},
                {"name": "broken", "seeds": [3], "settings": {"model": "no_such_package:model"}},
            ],
        },
        rounds=2,
    )
    runs = read_grid(grid, tmp_path / "out")
    monkeypatch.setattr(recorder_module, "write_plots", lambda folder: [])
    with stopped_after(1), pytest.raises(Stopped):
        run(runs[0].settings, runs[0].folder)
    # Each process gets one thread; the two run at the same time.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "simulations.study", grid, "--out", tmp_path / "out"]
    result = subprocess.run(
        [*map(str, command), "--jobs", "2"], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "done    sparse, seed 3" in result.stdout
    assert "FAILED  broken, seed 3; see" in result.stdout
    assert runs[0].is_finished()
    assert pd.read_csv(runs[0].folder / "rounds.csv")["round"].tolist() == [0, 1, 2]
    log = (runs[1].folder / "study.log").read_text()
    assert "cannot import 'no_such_package'" in log
    assert "Traceback" not in log
    again = run_grid(runs[:1], jobs=1, console=Console(quiet=True))
    assert again == 0


@pytest.mark.parametrize("stored", ["../data/clothes", "absolute"])
def test_runs_of_a_local_folder_are_finished_when_it_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[list[str]], stored: str
) -> None:
    folder = tmp_path / "data" / "clothes"
    folder.mkdir(parents=True)
    grid = write_grid(tmp_path / "code", dataset="zalando-datasets/fashion_mnist")
    monkeypatch.chdir(tmp_path / "code")
    for cell in read_grid(grid, tmp_path / "out"):
        cell.folder.mkdir(parents=True)
        (cell.folder / "model.npz").touch()
        old = cell.settings.to_mapping()
        old["dataset"] = str(folder) if stored == "absolute" else stored
        (cell.folder / "config.toml").write_text(tomli_w.dumps(old))
    again = read_grid(grid, tmp_path / "out", "../data/clothes")
    assert all(cell.is_finished() for cell in again)
    arguments = (grid, "--out", tmp_path / "out", "--dataset")
    assert call(*arguments, "../data/clothes").exit_code == 0
    refused = call(*arguments[:-1])
    assert refused.exit_code == 2
    assert "instead of 'zalando-datasets/fashion_mnist'" in refused.output
    assert launched == []
    # The folder is gone, or looked for from elsewhere: other settings, and not a broken run.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"other settings; move it away \(its dataset is "):
        read_grid(grid, tmp_path / "out")[0].is_finished()
