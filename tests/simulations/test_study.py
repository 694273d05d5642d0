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
from simulations.runner import run
from simulations.study import StudyRun, read_grid, run_grid, slug
from tests.simulations.small_runs import SMALL, Stopped, small, stopped_after
from zerofl_flwr.errors import SettingsError

METHODS: list[dict[str, Any]] = [
    {"name": "Dense, FedAvg", "seeds": [3, 4], "settings": {"sparsity": 0.0, "mask-ratio": 0.0}},
    {"name": "r = .2 [ours]", "seeds": [3]},
]
TINY = SMALL | {"num-clients": 4, "clients-per-round": 2, "rounds": 1}


def write_grid(folder: Path, grid: dict[str, Any] | None = None, **base: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    kebab = {key.replace("_", "-"): value for key, value in base.items()}
    (folder / "base.toml").write_text(tomli_w.dumps(TINY | kebab))
    path = folder / "grid.toml"
    path.write_text(
        tomli_w.dumps({"base": "base.toml", "method": METHODS} if grid is None else grid)
    )
    return path


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("FedAvg, dense", "fedavg-dense"),
        ("top-k-weights, r = .2", "top-k-weights-r-.2"),
        ("SWAT-in-FL (r = sp)", "swat-in-fl-r-sp"),
        ("../../etc", "etc"),
        ("Ünïcode & more", "n-code-more"),
    ],
)
def test_a_methods_name_becomes_a_folder(name: str, folder: str) -> None:
    assert slug(name) == folder


def test_a_grid_is_one_run_per_method_and_seed_first_seeds_first(tmp_path: Path) -> None:
    runs = read_grid(write_grid(tmp_path), tmp_path / "out")
    assert [(run.method, run.seed) for run in runs] == [
        ("Dense, FedAvg", 3),
        ("r = .2 [ours]", 3),
        ("Dense, FedAvg", 4),
    ]
    assert [str(run.folder.relative_to(tmp_path / "out")) for run in runs] == [
        "dense-fedavg/seed-3",
        "r-.2-ours/seed-3",
        "dense-fedavg/seed-4",
    ]
    tiny = {"num_clients": 4, "clients_per_round": 2, "rounds": 1}
    assert runs[0].settings == small(sparsity=0.0, mask_ratio=0.0, seed=3, **tiny)
    assert runs[1].settings == small(seed=3, **tiny)
    assert runs[2].settings.seed == 4


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"method": METHODS}, "the key 'base' is missing"),
        ({"base": "base.toml"}, "the key 'method' is missing"),
        ({"base": 3, "method": METHODS}, "base is 3; expected a str"),
        ({"base": "base.toml", "method": {"name": "x"}}, "expected a list"),
        ({"base": "base.toml", "method": ["x"]}, "must be [[method]] entries, got 'x'"),
        ({"base": "base.toml", "methods": METHODS}, "unknown key 'methods'; did you mean 'method'"),
        ({"base": "base.toml", "method": [{"seeds": [1]}]}, "the key 'name' is missing"),
        ({"base": "base.toml", "method": [{"name": "x"}]}, "the key 'seeds' is missing"),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": [1], "setting": {}}]},
            "unknown key 'setting'; did you mean 'settings'",
        ),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": [1], "settings": 3}]},
            "settings is 3; expected a dict",
        ),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": ["one"]}]},
            "method 'x', seed one: seed is 'one'; expected a int",
        ),
        (
            {
                "base": "base.toml",
                "method": [{"name": "x", "seeds": [1], "settings": {"sparstiy": 0.9}}],
            },
            "method 'x', seed 1: unknown setting 'sparstiy'; did you mean 'sparsity'",
        ),
        (
            {
                "base": "base.toml",
                "method": [{"name": "A b", "seeds": [1]}, {"name": "a, B", "seeds": [1]}],
            },
            "'A b' and 'a, B' share the folder a-b/seed-1",
        ),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": [1, 1]}]},
            "'x' and 'x' share the folder x/seed-1",
        ),
        ({"base": "none.toml", "method": METHODS}, "there is no config file"),
        (
            {"base": "base.toml", "method": METHODS, "figures": []},
            "unknown key 'figures'; did you mean 'figure'",
        ),
    ],
)
def test_a_grid_that_cannot_work_is_refused(
    tmp_path: Path, grid: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_grid(write_grid(tmp_path, grid), tmp_path / "out")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"name": "all"}, "figure is {'name': 'all'}; expected a list"),
        (["all"], "'figure' must be [[figure]] entries, got 'all'"),
        ([{"methods": []}], "the key 'name' is missing"),
        ([{"name": "all"}], "the key 'methods' is missing"),
        ([{"name": "all", "methods": "x"}], "methods is 'x'; expected a list"),
        (
            [{"name": "all", "methods": [], "axis": "round"}],
            "unknown key 'axis'",
        ),
        (
            [{"name": "all", "methods": ["Dense, FedAvg", "Dense FedAvg"]}],
            "figure 'all': unknown method 'Dense FedAvg'; did you mean 'Dense, FedAvg'?",
        ),
        ([{"name": "all", "methods": [["r"]]}], "figure 'all': unknown method \"['r']\""),
        ([{"name": "all", "methods": []}] * 2, "two figures are called 'all'"),
        ([{"name": "../all", "methods": []}], "'../all', which names no file"),
        ([{"name": "", "methods": []}], "'', which names no file"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused_before_anything_runs(
    tmp_path: Path, figures: Any, message: str
) -> None:
    grid = {"base": "base.toml", "method": METHODS, "figure": figures}
    with pytest.raises(SettingsError) as caught:
        read_grid(write_grid(tmp_path, grid), tmp_path / "out")
    assert message in str(caught.value)


def test_masks_of_an_unknown_method_are_refused_before_anything_runs(tmp_path: Path) -> None:
    grid = {"base": "base.toml", "method": METHODS, "masks": ["Dense FedAvg"]}
    with pytest.raises(SettingsError, match="masks: unknown method 'Dense FedAvg'; did you mean"):
        read_grid(write_grid(tmp_path, grid), tmp_path / "out")


def test_the_grids_that_come_with_the_package_can_be_read_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = Path(study.__file__).parent / "conf"
    grids = sorted(conf.glob("*-grid.toml"))
    assert grids
    monkeypatch.chdir(tmp_path)
    for grid in grids:
        runs = read_grid(grid, Path("out"))
        assert len(runs) > 1
        assert {run.settings.data.dataset for run in runs} == {"zalando-datasets/fashion_mnist"}


def test_another_data_set_counts_for_all_runs_but_those_with_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"name": "own", "seeds": [3], "settings": {"dataset": "uoft-cs/cifar10"}}
    grid = write_grid(tmp_path, {"base": "base.toml", "method": [*METHODS, own]})
    (tmp_path / "clothes").mkdir()
    monkeypatch.chdir(tmp_path)

    def datasets(given: str | None) -> set[str]:
        return {run.settings.data.dataset for run in read_grid(grid, tmp_path / "out", given)}

    assert datasets(None) == {"digits", "uoft-cs/cifar10"}
    assert datasets("./clothes") == {str(tmp_path / "clothes"), "uoft-cs/cifar10"}
    assert datasets("ylecun/mnist") == {"ylecun/mnist", "uoft-cs/cifar10"}
    with pytest.raises(SettingsError, match=r"the dataset folder \./nowhere does not exist"):
        datasets("./nowhere")


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
    import typer

    app = typer.Typer()
    app.command()(study._main)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


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
