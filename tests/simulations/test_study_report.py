"""The report of a study, over run folders written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from simulations import study_report
from simulations.commands import command
from simulations.study_grid import StudyRun, read_grid
from simulations.study_report import finished_runs, write_report
from tests.simulations.adasplit_run_folders import write_adasplit_run, write_client_masks
from tests.simulations.run_folders import drifting_masks, write_masks
from zerofl_flwr.errors import DataError

_GRID = """
base = "base.toml"
pictures = ["sparse"]

[[method]]
name = "dense"
seeds = [1, 2]
settings = { sparsity = 0.0, mask-ratio = 0.0 }

[[method]]
name = "sparse"
seeds = [1]

[[figure]]
name = "both"
methods = ["dense", "sparse"]

[[figure]]
name = "not yet"
methods = ["sparse"]
"""


def _write_finished(run: StudyRun, accuracies: list[float]) -> None:
    run.folder.mkdir(parents=True)
    run.settings.save(run.folder / "config.toml")
    rows = [
        {
            "round": number,
            "accuracy": accuracy,
            "loss": 1.0,
            "train_loss": 0.9,
            "sparsity": run.settings.zerofl.sparsity,
            "uplink_bytes": 2_000_000 if number else 0,
            "downlink_bytes": 4_000_000 if number else 0,
            "train_seconds": 3.0,
            "round_seconds": 2.0,
            "nonzero_ratio": 0.25,
            "mask_overlap": 0.9,
            "failures": 0,
        }
        for number, accuracy in enumerate(accuracies)
    ]
    pd.DataFrame(rows).to_csv(run.folder / "rounds.csv", index=False)
    clients = [
        {
            "round": number,
            "partition_id": 0,
            "uplink_bytes": 2_000_000,
            "downlink_bytes": 4_000_000,
            "train_seconds": 3.0,
            "failure": "",
        }
        for number in range(1, len(accuracies))
    ]
    pd.DataFrame(clients).to_csv(run.folder / "clients.csv", index=False)
    (run.folder / "model.npz").write_bytes(b"a model")


@pytest.fixture
def study(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "base.toml").write_text("rounds = 2\n")
    grid = tmp_path / "grid.toml"
    grid.write_text(_GRID)
    runs = {(run.method, run.seed): run for run in read_grid(grid, tmp_path / "runs")}
    _write_finished(runs["dense", 1], [0.1, 0.5, 0.7])
    _write_finished(runs["dense", 2], [0.1, 0.6, 0.8])
    return grid, tmp_path / "runs"


def test_only_finished_runs_are_reported(study: tuple[Path, Path]) -> None:
    grid, runs = study
    finished = finished_runs(read_grid(grid, runs))
    assert {method: [run.seed for run in done] for method, done in finished.items()} == {
        "dense": [1, 2]
    }


def test_report_holds_tables_and_the_figures_of_the_grid(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    grid, runs = study
    out = tmp_path / "report"
    written = write_report(grid, runs, out)
    assert {path.name for path in written} == {
        "summary.csv",
        "summary.md",
        "rounds.csv",
        "both-by-round.png",
        "both-by-megabytes.png",
        "both-by-seconds.png",
    }
    assert all(path.stat().st_size > 0 for path in written)
    summary = pd.read_csv(out / "summary.csv").iloc[0]
    assert summary["method"] == "dense"
    assert summary["seeds"] == 2
    # Both rounds are among the last ten: (50 + 70) / 2 and (60 + 80) / 2.
    assert summary["accuracy"] == pytest.approx(65.0)
    rounds = pd.read_csv(out / "rounds.csv")
    assert rounds["seed"].tolist() == [1, 1, 1, 2, 2, 2]
    assert rounds["accuracy"].tolist() == [0.1, 0.5, 0.7, 0.1, 0.6, 0.8]


def test_the_grid_says_over_how_many_rounds_accuracy_is_averaged(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    grid, runs = study
    grid.write_text("last-rounds = 1\n" + grid.read_text())
    write_report(grid, runs, tmp_path / "report")
    summary = pd.read_csv(tmp_path / "report" / "summary.csv").iloc[0]
    assert summary["accuracy"] == pytest.approx(75.0)  # of 70 and 80
    assert summary["previous"] == pytest.approx(55.0)  # of 50 and 60


def test_clients_and_picks_of_an_adasplit_run_are_drawn(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    grid, runs = study
    run = next(run for run in read_grid(grid, runs) if run.method == "sparse")
    write_adasplit_run(run.folder)
    overlap = np.array([[1.0, 0.3], [0.3, 1.0]])
    write_client_masks(run.folder, [0, 1], [0.4, 0.6], overlap)
    run.settings.save(run.folder / "config.toml")
    (run.folder / "model.npz").write_bytes(b"a model")
    written = {path.name for path in write_report(grid, runs, tmp_path / "report")}
    names = ("client-accuracy", "picks", "ucb-terms", "client-masks")
    assert {f"sparse-{name}.png" for name in names} <= written


def test_zero_positions_are_drawn_of_the_methods_that_the_grid_names(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    grid, runs = study
    run = next(run for run in read_grid(grid, runs) if run.method == "sparse")
    _write_finished(run, [0.1, 0.4, 0.6])
    kept = {"fc1.weight": drifting_masks(2, 40, 0.2, seed=1)}
    write_masks(run.folder, [1, 2], kept)
    layers = {"round": [1, 2], "layer": "fc1.weight", "mask_overlap": [None, 0.9]}
    pd.DataFrame(layers | {"zero_overlap": [None, 0.95]}).to_csv(
        run.folder / "layers.csv", index=False
    )
    written = {path.name for path in write_report(grid, runs, tmp_path / "report")}
    expected = {f"sparse-{name}.png" for name in ("mask-overlap", "overlap-matrix")}
    assert expected | {"sparse-zero-positions.png"} <= written
    assert not any(name.startswith("dense-") for name in written)


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(
        command(study_report._main), [str(argument) for argument in arguments]
    )
    return result.exit_code, result.output


def test_a_study_without_a_finished_run_has_no_report(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("rounds = 2\n")
    (tmp_path / "grid.toml").write_text(_GRID)
    with pytest.raises(DataError, match=r"no run of .* is finished in .*runs"):
        write_report(tmp_path / "grid.toml", tmp_path / "runs", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_errors_keep_their_square_brackets(study: tuple[Path, Path], tmp_path: Path) -> None:
    grid, runs = study
    grid.write_text(_GRID.replace('methods = ["sparse"]', 'methods = ["sparse [bold]"]'))
    code, output = call(grid, "--runs", runs, "--out", tmp_path / "report")
    assert code == 2
    assert "figure 'not yet': unknown method 'sparse [bold]'; did you mean 'sparse'?" in output
    grid.write_text('base = "base.toml"\nmethod = ["x"]\n')
    code, output = call(grid, "--runs", runs, "--out", tmp_path / "report")
    assert code == 2
    assert "'method' must be [[method]] entries, got 'x'" in output


def test_the_report_takes_the_data_set_that_the_runs_took(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    grid, runs = study
    arguments = (grid, "--runs", runs, "--out", tmp_path / "[report]")
    code, output = call(*arguments, "--dataset", "ylecun/mnist")
    assert code == 2
    assert "its dataset is 'digits' instead of 'ylecun/mnist'" in output
    code, output = call(*arguments, "--dataset", "digits")
    assert code == 0
    assert f"{tmp_path}/[report]/both-by-seconds.png" in output
