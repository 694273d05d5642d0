"""Turn the finished runs of a study into tables and pictures.

``python -m simulations.study_report GRID.toml --runs runs/NAME --out docs/NAME``
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console

from simulations.commands import command
from simulations.report import PICTURES, compare_accuracy, summary_table, to_markdown
from simulations.settings import read_config
from simulations.study import DATASET_HELP
from simulations.study_grid import LAST_ROUNDS, StudyRun, read_grid, slug
from zerofl_flwr.errors import DataError

_AXES = ("round", "megabytes", "seconds")
_RUN_PICTURES = (
    "mask_overlap",
    "overlap_matrix",
    "zero_positions",
    "client_accuracy",
    "picks",
    "ucb_terms",
    "client_masks",
)
_KEPT_COLUMNS = [
    "round",
    "phase",
    "accuracy",
    "trained_accuracy",
    "loss",
    "train_loss",
    "server_loss",
    "picked",
    "sparsity",
    "uplink_bytes",
    "downlink_bytes",
    "train_seconds",
    "round_seconds",
    "nonzero_ratio",
    "mask_overlap",
    "mask_density",
    "failures",
]
"""Those that a method's rounds have."""


def finished_runs(runs: list[StudyRun]) -> dict[str, list[StudyRun]]:
    """Return the finished runs by method, in the grid's order of methods."""
    finished: dict[str, list[StudyRun]] = {run.method: [] for run in runs}
    for run in runs:
        if run.is_finished():
            finished[run.method].append(run)
    return {method: done for method, done in finished.items() if done}


def write_report(
    grid: Path, runs_folder: Path, out: Path, dataset: str | None = None
) -> list[Path]:
    """Write ``summary.csv``, ``summary.md``, ``rounds.csv`` and the grid's figures.

    Parameters
    ----------
    grid : Path
        The study's grid. Each of its ``[[figure]]`` entries (``name``, ``methods``) is drawn by
        round, by megabytes and by seconds, as far as its methods are finished. For each method of
        its list ``pictures``, the first finished run's masks, clients and picks are drawn. Its
        ``last-rounds``, 10 by default, says over how many rounds accuracy is averaged.
    runs_folder, out : Path
        Where the runs are, and where the report goes.
    dataset : str, optional
        What the runs were told to use instead of the base's data set.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    LeanFlwrError
        If the grid cannot be used, a folder holds a run of other settings, or no run is finished.
    """
    finished = finished_runs(read_grid(grid, runs_folder.absolute(), dataset))
    if not finished:
        raise DataError(f"no run of {grid} is finished in {runs_folder}")
    folders = {method: [run.folder for run in runs] for method, runs in finished.items()}
    out.mkdir(parents=True, exist_ok=True)
    content = read_config(grid)
    table = summary_table(folders, content.get(LAST_ROUNDS, 10))
    table.to_csv(out / "summary.csv", index=False, float_format="%.4g")
    (out / "summary.md").write_text(to_markdown(table) + "\n")
    all_rounds(finished).to_csv(out / "rounds.csv", index=False, float_format="%.6g")
    written = [out / name for name in ("summary.csv", "summary.md", "rounds.csv")]
    figures: list[dict[str, Any]] = content.get("figure", [])
    for figure in figures:
        chosen = {name: folders[name] for name in figure["methods"] if name in folders}
        for axis in _AXES if chosen else ():
            path = out / f"{figure['name']}-by-{axis}.png"
            compare_accuracy(chosen, axis).savefig(path)  # type: ignore[arg-type]
            written.append(path)
    for method in content.get("pictures", []):
        if method in folders:
            written += _draw_run(folders[method][0], out / slug(method))
    return written


def _draw_run(run: Path, stem: Path) -> list[Path]:
    written = []
    for name in _RUN_PICTURES:
        figure = PICTURES[name](run)
        if figure is not None:
            path = stem.with_name(f"{stem.name}-{name.replace('_', '-')}.png")
            figure.savefig(path)
            written.append(path)
    return written


def all_rounds(finished: dict[str, list[StudyRun]]) -> pd.DataFrame:
    """Put the rounds of all runs into one long table with columns method and seed."""
    tables = []
    for method, runs in finished.items():
        for run in runs:
            table = pd.read_csv(run.folder / "rounds.csv")
            table = table[[column for column in _KEPT_COLUMNS if column in table]]
            table.insert(0, "seed", run.seed)
            table.insert(0, "method", method)
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _main(
    grid: Annotated[Path, typer.Argument(help="TOML file of the study.")],
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/study"),
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("runs/study-report"),
    dataset: Annotated[str | None, typer.Option(help=DATASET_HELP)] = None,
) -> None:
    """Write tables and pictures of what a study has finished so far."""
    console = Console()
    for path in write_report(grid, runs, out, dataset):
        console.print(str(path), soft_wrap=True, markup=False, highlight=False)


if __name__ == "__main__":
    command(_main)()
