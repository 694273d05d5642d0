"""Running what is not finished of a grid."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from simulations.comparison.grid import GridRun, read_grid
from simulations.comparison.running import run_grid
from tests.simulations.grids import write_grid
from tests.simulations.small_runs import small
from zerofl_flwr.errors import SettingsError


def a_run(folder: Path, **changes: Any) -> GridRun:
    settings = small(num_clients=4, clients_per_round=2, **changes)
    return GridRun("a method", settings.seed, settings, folder)


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


def test_settings_that_cannot_be_read_are_named_by_their_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("sparstiy = 0.9\n")
    with pytest.raises(SettingsError, match=r"config\.toml: unknown setting 'sparstiy'; did you"):
        a_run(tmp_path).is_finished()


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
    runs = read_grid(write_grid(tmp_path), tmp_path / "out").runs
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
    runs = read_grid(write_grid(tmp_path), tmp_path / "out").runs
    runs[-1].folder.mkdir(parents=True)
    small().save(runs[-1].folder / "config.toml")
    with pytest.raises(SettingsError, match="other settings"):
        run_grid(runs, jobs=1, console=Console(quiet=True))
    assert launched == []


@pytest.mark.parametrize("stored", ["../data/clothes", "absolute"])
def test_runs_of_a_local_folder_are_finished_when_it_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: list[list[str]], stored: str
) -> None:
    folder = tmp_path / "data" / "clothes"
    folder.mkdir(parents=True)
    grid = write_grid(tmp_path / "code", dataset="zalando-datasets/fashion_mnist")
    monkeypatch.chdir(tmp_path / "code")
    for cell in read_grid(grid, tmp_path / "out").runs:
        cell.folder.mkdir(parents=True)
        (cell.folder / "model.npz").touch()
        old = cell.settings.to_mapping()
        old["dataset"] = str(folder) if stored == "absolute" else stored
        (cell.folder / "config.toml").write_text(tomli_w.dumps(old))
    quiet = Console(quiet=True)
    again = read_grid(grid, tmp_path / "out", "../data/clothes").runs
    assert all(cell.is_finished() for cell in again)
    assert run_grid(again, jobs=1, console=quiet) == 0
    with pytest.raises(SettingsError, match="instead of 'zalando-datasets/fashion_mnist'"):
        run_grid(read_grid(grid, tmp_path / "out").runs, jobs=1, console=quiet)
    assert launched == []
    # The folder is gone, or looked for from elsewhere: other settings, and not a broken run.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"other settings; move it away \(its dataset is "):
        read_grid(grid, tmp_path / "out").runs[0].is_finished()
