"""`lean-flwr compare`, `sweep` and `report`, in this process and as a user starts them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulations.comparison.grid import read_grid
from simulations.runner import run
from simulations.settings import RunSettings, read_config
from tests.simulations.finished_runs import add_compute, write_finished
from tests.simulations.grids import METHODS, write_grid
from tests.simulations.invoked import invoke, without_styles
from tests.simulations.small_runs import Stopped, small, stopped_after
from tests.simulations.small_split_runs import small_split
from zerofl_flwr.errors import DataError, LeanFlwrError, SettingsError


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the folders that would be written; a run of seed 4 fails, others finish at once."""
    folders: list[str] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--out") + 1])
        folders.append(str(folder))
        if folder.name == "seed-4":
            return subprocess.CompletedProcess(command, 7)
        settings = RunSettings.from_mapping(read_config(folder / "study.toml"))
        (folder / "study.toml").unlink()
        (folder / "study.log").unlink()
        folder.rmdir()
        add_compute(write_finished(folder, settings, [0.1, 0.5]), client=1e12, server=0)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", fake)
    return folders


def test_the_help_words_what_a_file_holds() -> None:
    for name, holds in (("compare", "[[method]] entries"), ("sweep", "[sweep] with lists")):
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert holds in without_styles(result.output)
    assert "RUNS..." in invoke("report", "--help").output


def test_compare_runs_what_is_missing_and_reports_what_is_finished(
    tmp_path: Path, starts: list[str]
) -> None:
    grid, out = write_grid(tmp_path), tmp_path / "[out]"
    result = invoke("compare", grid, "--out", out)
    assert result.exit_code == 1  # seed 4 has failed
    seeds = [out / "dense-fedavg" / "seed-3", out / "r-.2-ours" / "seed-3"]
    assert starts == [str(folder) for folder in (*seeds, out / "dense-fedavg" / "seed-4")]
    assert result.output.splitlines()[-2:] == [
        "note: 1 of 3 runs are not finished",
        f"report: {out}/report/index.html",
    ]
    summary = pd.read_csv(out / "report" / "summary.csv")
    assert summary["method"].tolist() == ["Dense, FedAvg", "r = .2 [ours]"]
    assert "<title>grid</title>" in (out / "report" / "index.html").read_text()
    again = invoke("compare", grid, "--out", out, "--report", tmp_path / "docs")
    assert starts[3:] == [str(out / "dense-fedavg" / "seed-4")]
    assert again.output.startswith("2 of 3 runs are finished\n")
    assert (tmp_path / "docs" / "index.html").exists()


def test_sweep_runs_every_combination(tmp_path: Path, starts: list[str]) -> None:
    content = {
        "base": "base.toml",
        "seeds": [3],
        "sweep": {"sparsity": [0.5, 0.9], "momentum": [0.0, 0.9]},
    }
    out = tmp_path / "out"
    budgets = ["--bandwidth-budget", 0.012, "--compute-budget", 2, "--temperature", 4]
    result = invoke("sweep", write_grid(tmp_path, content), "--out", out, "--jobs", 2, *budgets)
    assert result.exit_code == 0, result.output
    assert len(starts) == 4
    summary = pd.read_csv(out / "report" / "summary.csv")
    assert summary["method"].tolist() == [
        f"sparsity {sparsity}, momentum {momentum}"
        for sparsity in (0.5, 0.9)
        for momentum in (0.0, 0.9)
    ]
    # 6 of 12 MB, 1 of 2 T: e^(-1/4).
    assert summary["C3"].tolist() == pytest.approx([0.5 * 0.7788007831] * 4, rel=1e-5)


def test_runs_go_to_a_folder_of_the_files_name_unless_told(
    tmp_path: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"base": "base.toml", "method": [{"name": "x", "seeds": [3]}]}
    write_grid(tmp_path, content).rename(tmp_path / "mine-grid.toml")
    assert invoke("compare", "mine-grid.toml").exit_code == 0
    assert starts == [str(tmp_path / "runs" / "mine" / "x" / "seed-3")]
    assert (tmp_path / "runs" / "mine" / "report" / "index.html").exists()


@pytest.mark.parametrize(
    ("command", "content", "message"),
    [
        (
            "compare",
            {"base": "base.toml", "seeds": [3], "sweep": {"momentum": [0.5]}},
            "grid.toml has a [sweep]; run it with lean-flwr sweep",
        ),
        (
            "sweep",
            {"base": "base.toml", "method": METHODS},
            "grid.toml has [[method]]s; run it with lean-flwr compare",
        ),
        ("compare", {"method": METHODS}, "the key 'base' is missing"),
    ],
)
def test_a_file_for_another_command_or_none_starts_nothing(
    command: str, content: dict[str, Any], message: str, tmp_path: Path, starts: list[str]
) -> None:
    result = invoke(command, write_grid(tmp_path, content), "--out", tmp_path / "out")
    assert isinstance(result.exception, SettingsError)
    assert message in str(result.exception)
    assert starts == []


def test_a_budget_that_cannot_be_starts_nothing(tmp_path: Path, starts: list[str]) -> None:
    result = invoke("compare", write_grid(tmp_path), "--compute-budget", "-1")
    assert isinstance(result.exception, SettingsError)
    assert "the compute budget is -1.0" in str(result.exception)
    assert starts == []
    assert invoke("compare", write_grid(tmp_path), "--jobs", 0).exit_code == 2


def test_without_a_finished_run_compare_fails_and_writes_no_report(
    tmp_path: Path, starts: list[str]
) -> None:
    content = {"base": "base.toml", "method": [{"name": "x", "seeds": [4]}]}
    result = invoke("compare", write_grid(tmp_path, content), "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert len(starts) == 1
    assert not (tmp_path / "out" / "report").exists()


def test_an_interruption_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    result = invoke("compare", write_grid(tmp_path), "--out", tmp_path / "out")
    assert result.exit_code == 130
    assert result.output.splitlines()[-1] == "interrupted; the same command continues"


def test_report_takes_names_from_settings_or_from_a_grid(tmp_path: Path) -> None:
    content = {"base": "base.toml", "method": METHODS, "last-tests": 2}
    grid, runs = write_grid(tmp_path, content), tmp_path / "runs"
    for cell in read_grid(grid, runs).runs:
        write_finished(cell.folder, cell.settings, [0.1, 0.4, 0.6])
    result = invoke("report", runs, "--out", tmp_path / "found")
    assert result.exit_code == 0, result.output
    assert result.output == f"report: {tmp_path}/found/index.html\n"
    summary = pd.read_csv(tmp_path / "found" / "summary.csv")
    assert summary["seeds"].tolist() == [2, 1]
    assert summary["method"].str.startswith("sparsity ").all()
    assert summary["accuracy"].tolist() == [60, 60]
    options = ("--last-tests", 2, "--out", tmp_path / "two")
    assert invoke("report", runs / "r-.2-ours", *options).exit_code == 0
    assert pd.read_csv(tmp_path / "two" / "summary.csv")["accuracy"].tolist() == [50]
    assert invoke("report", runs, "--grid", grid, "--out", tmp_path / "named").exit_code == 0
    named = pd.read_csv(tmp_path / "named" / "summary.csv")
    assert named["method"].tolist() == ["Dense, FedAvg", "r = .2 [ours]"]
    assert named["accuracy"].tolist() == [50, 50]


def test_a_report_of_a_grid_takes_the_data_set_that_its_runs_took(tmp_path: Path) -> None:
    grid = write_grid(tmp_path, {"base": "base.toml", "method": [{"name": "x", "seeds": [3]}]})
    [cell] = read_grid(grid, tmp_path / "runs").runs
    write_finished(cell.folder, cell.settings, [0.1, 0.4])
    arguments = ("report", tmp_path / "runs", "--grid", grid, "--out", tmp_path / "out")
    refused = invoke(*arguments, "--dataset", "ylecun/mnist")
    assert "its dataset is 'digits' instead of 'ylecun/mnist'" in str(refused.exception)
    assert invoke(*arguments, "--dataset", "digits").exit_code == 0


def test_what_report_cannot_do_is_our_error(tmp_path: Path) -> None:
    grid, runs = write_grid(tmp_path), tmp_path / "runs"
    write_finished(runs / "a", small(), [0.1, 0.5])

    def error(*arguments: object) -> LeanFlwrError:
        exception = invoke("report", *arguments, "--out", tmp_path / "out").exception
        assert isinstance(exception, LeanFlwrError)
        return exception

    assert "--dataset belongs to --grid" in str(error(runs, "--dataset", "digits"))
    for option, value in (("--last-tests", 3), ("--tests", "clients")):
        refused = error(runs, "--grid", grid, option, value)
        assert f"{option} does not go with --grid; set it in" in str(refused)
    assert "one folder of runs, not 2" in str(error(runs, runs, "--grid", grid))
    assert "last-tests is 0" in str(error(runs, "--last-tests", 0))
    unknown = str(error(runs, "--tests", "client"))
    assert unknown.startswith("unknown choice of tests 'client'; did you mean 'clients'?")
    untested = str(error(runs, "--tests", "clients"))
    assert untested.startswith("method 'zerofl': ")
    assert "has no tests.csv" in untested
    assert "set fraction-evaluate above 0" in untested
    assert "there is no such folder" in str(error(tmp_path / "nowhere"))
    unfinished = error(runs, "--grid", grid)
    assert isinstance(unfinished, DataError)
    assert "no run is finished" in str(unfinished)
    assert not (tmp_path / "out").exists()
    assert invoke("report").exit_code == 2  # typer's own: RUNS... are missing


@pytest.mark.usefixtures("no_plots")
def test_real_runs_stand_beside_each_other_on_their_clients_samples(tmp_path: Path) -> None:
    tiny = {"num_clients": 4, "clients_per_round": 4, "rounds": 3, "validation_fraction": 0.2}
    chosen = {
        "zerofl": small(**tiny, evaluate_every=2, fraction_evaluate=1.0),
        "adasplit": small_split(**tiny, evaluate_every=2),
    }
    for name, settings in chosen.items():
        run(settings, tmp_path / "runs" / name)

    def mean_of_clients(name: str, *rounds: str) -> float:
        with (tmp_path / "runs" / name / "tests.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["round"] in rounds]
        assert len(rows) == 4 * len(rounds)
        return 100 * sum(float(row["accuracy"]) for row in rows) / len(rows)

    options = ("--tests", "clients", "--last-tests", 2)
    result = invoke("report", tmp_path / "runs", *options, "--out", tmp_path / "own")
    assert result.exit_code == 0, result.output
    assert result.output == f"report: {tmp_path}/own/index.html\n"  # and no note
    summary = pd.read_csv(tmp_path / "own" / "summary.csv").set_index("method")["accuracy"]
    # ZeroFL's clients test in round 1 too, which is none of its tests.
    expected = {name: mean_of_clients(name, "2", "3") for name in chosen}
    assert summary.to_dict() == pytest.approx(expected, rel=1e-5)
    recorded = invoke("report", tmp_path / "runs", "--out", tmp_path / "recorded")
    assert "note: the accuracy of zerofl is the server's" in recorded.output
    table = pd.read_csv(tmp_path / "recorded" / "summary.csv").set_index("method")["accuracy"]
    assert table["adasplit"] == pytest.approx(mean_of_clients("adasplit", "3"), rel=1e-5)
    assert table["zerofl"] != pytest.approx(mean_of_clients("zerofl", "3"), rel=1e-5)


@pytest.mark.usefixtures("no_plots")
def test_a_comparison_of_real_processes_finishes_an_interrupted_run(tmp_path: Path) -> None:
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
    runs = read_grid(grid, tmp_path / "out").runs
    with stopped_after(1), pytest.raises(Stopped):
        run(runs[0].settings, runs[0].folder)
    # Each process gets one thread; the two run at the same time.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "simulations", "compare", grid, "--out", tmp_path / "out"]
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
    summary = pd.read_csv(tmp_path / "out" / "report" / "summary.csv")
    assert summary["method"].tolist() == ["sparse"]
    assert "note: 1 of 2 runs are not finished" in result.stdout
