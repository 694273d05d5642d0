"""The report of a comparison, over run folders written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.c3 import Budgets
from simulations.comparison.grid import Grid, GridRun, read_grid
from simulations.comparison.methods import Comparison, finished_methods, found_methods
from simulations.comparison.report import write_report
from strategies.traffic import CATEGORIES
from tests.simulations.adasplit_run_folders import write_adasplit_run, write_client_masks
from tests.simulations.finished_runs import add_compute, add_tests, write_finished
from tests.simulations.run_folders import drifting_masks, write_masks
from zerofl_flwr.errors import DataError

_GRID = """
base = "base.toml"
pictures = ["sparse"]
last-tests = 2

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
_COMMON = {
    *("summary.csv", "summary.md", "rounds.csv", "all-rounds.csv.gz"),
    *("trade-off.png", "index.html"),
}


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    """Both seeds of the first method are finished."""
    (tmp_path / "base.toml").write_text("rounds = 2\n")
    (tmp_path / "grid.toml").write_text(_GRID)
    grid = read_grid(tmp_path / "grid.toml", tmp_path / "runs")
    write_finished(
        run_of(grid, "dense", 1).folder, run_of(grid, "dense", 1).settings, [0.1, 0.5, 0.7]
    )
    write_finished(
        run_of(grid, "dense", 2).folder, run_of(grid, "dense", 2).settings, [0.1, 0.6, 0.8]
    )
    return grid


def run_of(grid: Grid, method: str, seed: int) -> GridRun:
    [run] = [run for run in grid.runs if (run.method, run.seed) == (method, seed)]
    return run


def names(written: list[Path]) -> set[str]:
    assert all(path.stat().st_size > 0 for path in written)
    return {path.name for path in written}


def test_a_report_holds_tables_a_page_and_the_figures_of_the_grid(
    grid: Grid, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    written = write_report(finished_methods(grid), out)
    curves = {f"both-by-{axis}.png" for axis in ("round", "megabytes", "seconds")}
    assert names(written) == _COMMON | curves
    assert names(list(out.iterdir())) == names(written)
    summary = pd.read_csv(out / "summary.csv").iloc[0]
    assert summary["method"] == "dense"
    assert summary["seeds"] == 2
    # Both rounds are tested: (50 + 70) / 2 and (60 + 80) / 2.
    assert summary["accuracy"] == pytest.approx(65.0)
    assert np.isnan(summary["C3"])
    text = (out / "summary.md").read_text()
    assert "| dense" in text
    assert "C3" not in text  # nothing is known of it
    assert text.startswith(
        "| method | seeds | accuracy | spread |  best |    GB | rounds | uplink MB per"
    )
    rounds = pd.read_csv(out / "rounds.csv")
    assert rounds["seed"].tolist() == [1, 1, 1, 2, 2, 2]
    assert rounds["accuracy"].tolist() == [0.1, 0.5, 0.7, 0.1, 0.6, 0.8]
    packed = (out / "all-rounds.csv.gz").read_bytes()
    everything = pd.read_csv(out / "all-rounds.csv.gz")
    assert everything.to_dict("list") == rounds.to_dict("list")  # of which all are tested
    write_report(finished_methods(grid), out)
    assert (out / "all-rounds.csv.gz").read_bytes() == packed


def test_compute_and_clients_add_their_pictures_and_tables(grid: Grid, tmp_path: Path) -> None:
    for seed in (1, 2):
        add_compute(run_of(grid, "dense", seed).folder, client=3e12, server=0)
        add_tests(run_of(grid, "dense", seed).folder, [[0.2, 0.4], [0.4, 0.6]])
    comparison = finished_methods(grid)
    out = tmp_path / "report"
    budgets = Budgets(bandwidth=0.012, compute=12)
    written = write_report(comparison, out, budgets)
    more = {"both-by-multiply-adds.png", "c3.png", "clients.csv", "client-accuracy.png"}
    assert more <= names(written)
    clients = pd.read_csv(out / "clients.csv")
    assert clients["accuracy"].tolist() == pytest.approx([30, 50])  # over two rounds
    # Two rounds of 6 MB and 3 T: B is 1, C is 1/2.
    summary = pd.read_csv(out / "summary.csv")
    assert summary["C3"].tolist() == pytest.approx([0.65 * 0.8290291181], rel=1e-5)
    assert "| 0.539 |" in (out / "summary.md").read_text()
    rounds = pd.read_csv(out / "rounds.csv")
    assert rounds["client_ops"].tolist() == [0, 3e12, 3e12] * 2


def test_curves_by_multiply_adds_are_of_methods_that_counted_them(
    grid: Grid, tmp_path: Path
) -> None:
    sparse = run_of(grid, "sparse", 1)
    write_finished(sparse.folder, sparse.settings, [0.1, 0.2, 0.3])
    add_compute(sparse.folder, client=3e12, server=0)
    add_compute(run_of(grid, "dense", 1).folder, client=3e12, server=0)  # not so seed 2
    written = names(write_report(finished_methods(grid), tmp_path / "report"))
    assert {"not yet-by-multiply-adds.png", "both-by-multiply-adds.png", "c3.png"} <= written
    # One score alone, as dense has a seed without a count.
    summary = pd.read_csv(tmp_path / "report" / "summary.csv")
    assert summary["C3"].isna().tolist() == [True, False]


def test_without_a_grid_all_methods_are_drawn_in_one_figure(grid: Grid, tmp_path: Path) -> None:
    written = write_report(found_methods([tmp_path / "runs"]), tmp_path / "report")
    curves = {f"accuracy-by-{axis}.png" for axis in ("round", "megabytes", "seconds")}
    assert names(written) == _COMMON | curves
    summary = pd.read_csv(tmp_path / "report" / "summary.csv").iloc[0]
    assert (summary["method"], summary["seeds"]) == ("zerofl", 2)
    assert summary["accuracy"] == pytest.approx(75.0)  # of 70 and 80, the last tests
    assert summary["previous"] == pytest.approx(55.0)


def test_a_method_that_was_never_tested_has_a_row_and_no_curve(grid: Grid, tmp_path: Path) -> None:
    sparse = run_of(grid, "sparse", 1)
    write_finished(sparse.folder, sparse.settings, [None, None, None])
    written = names(write_report(finished_methods(grid), tmp_path / "report"))
    curves = {f"both-by-{axis}.png" for axis in ("round", "megabytes", "seconds")}
    assert written == _COMMON | curves  # and none of "not yet"
    summary = pd.read_csv(tmp_path / "report" / "summary.csv")
    assert summary["accuracy"].isna().tolist() == [False, True]
    assert summary["uplink GB"].tolist() == pytest.approx([0.004, 0.004])


def test_clients_and_picks_of_an_adasplit_run_are_drawn(grid: Grid, tmp_path: Path) -> None:
    run = run_of(grid, "sparse", 1)
    write_adasplit_run(run.folder)
    overlap = np.array([[1.0, 0.3], [0.3, 1.0]])
    write_client_masks(run.folder, [0, 1], [0.4, 0.6], overlap)
    run.settings.save(run.folder / "config.toml")
    (run.folder / "model.npz").write_bytes(b"a model")
    written = names(write_report(finished_methods(grid), tmp_path / "report"))
    pictures = ("client-accuracy", "picks", "ucb-terms", "client-masks")
    assert {f"sparse-{name}.png" for name in pictures} | {"client-accuracy.png"} <= written


def test_zero_positions_are_drawn_of_the_methods_that_the_grid_names(
    grid: Grid, tmp_path: Path
) -> None:
    run = run_of(grid, "sparse", 1)
    write_finished(run.folder, run.settings, [0.1, 0.4, 0.6])
    kept = {"fc1.weight": drifting_masks(2, 40, 0.2, seed=1)}
    write_masks(run.folder, [1, 2], kept)
    layers = {"round": [1, 2], "layer": "fc1.weight", "mask_overlap": [None, 0.9]}
    pd.DataFrame(layers | {"zero_overlap": [None, 0.95]}).to_csv(
        run.folder / "layers.csv", index=False
    )
    written = names(write_report(finished_methods(grid), tmp_path / "report"))
    expected = {f"sparse-{name}.png" for name in ("mask-overlap", "overlap-matrix")}
    assert expected | {"sparse-zero-positions.png"} <= written
    assert not any(name.startswith("dense-") for name in written)


def test_accuracy_by_a_setting_has_a_picture_and_a_section(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("rounds = 2\n")
    text = 'base = "base.toml"\nseeds = [1]\n[sweep]\nsparsity = [0.5, 0.7, 0.9]\n'
    (tmp_path / "grid.toml").write_text(text)
    grid = read_grid(tmp_path / "grid.toml", tmp_path / "runs")
    for run in grid.runs[:2]:
        write_finished(run.folder, run.settings, [0.1, 0.5, 0.7])
    written = names(write_report(finished_methods(grid), tmp_path / "report"))
    assert {"accuracy-by-sparsity.png", "accuracy-by-round.png"} <= written
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<h2>By setting</h2>" in page
    assert page.count("Test accuracy at the end by sparsity.") == 2  # picture's text and caption


def test_a_report_of_the_clients_tests(grid: Grid, tmp_path: Path) -> None:
    for seed in (1, 2):
        add_tests(run_of(grid, "dense", seed).folder, [[0.2, 0.4], [0.25, 0.75]])
    out = tmp_path / "report"
    write_report(found_methods([tmp_path / "runs"], tests="clients"), out)
    assert pd.read_csv(out / "summary.csv")["accuracy"].tolist() == [50]
    # Rounds stay as they were recorded.
    assert pd.read_csv(out / "rounds.csv")["accuracy"].tolist()[:3] == [0.1, 0.5, 0.7]
    page = " ".join((out / "index.html").read_text().split())
    said = "that of the last test, the mean over clients that test on samples of their own."
    assert said in page


def test_without_a_finished_run_there_is_no_report(tmp_path: Path) -> None:
    message = "no run is finished, so that there is nothing to report; a is not finished"
    with pytest.raises(DataError, match=message):
        write_report(Comparison([], notes=["a is not finished"]), tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_what_the_traffic_is_has_a_table_where_runs_tell(grid: Grid, tmp_path: Path) -> None:
    comparison = finished_methods(grid)
    for seed in (1, 2):
        folder = run_of(grid, "dense", seed).folder
        sizes = {f"{way}_{name}": seed * 10**6 for way in ("up", "down") for name in CATEGORIES}
        rows = [{"round": number, "partition_id": 0, **sizes} for number in (1, 2)]
        pd.DataFrame(rows).to_csv(folder / "traffic.csv", index=False)
    written = write_report(comparison, tmp_path / "report")
    assert "traffic.csv" in names(written)
    [row] = pd.read_csv(tmp_path / "report" / "traffic.csv").to_numpy().tolist()
    assert row == ["dense", *[3.0] * 12]
    assert "What the traffic is [MB]" in (tmp_path / "report" / "index.html").read_text()
