"""Run a grid of methods and seeds, several at a time, skipping what is finished.

``python -m simulations.study GRID.toml --out runs/NAME --jobs 2``. The grid names a base config and
methods; each run is a process of its own and resumes from its checkpoint when it was interrupted.
``--dataset FOLDER`` takes the base's data set from a local folder, or by another name on the hub.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from simulations.commands import command
from simulations.study_grid import StudyRun, read_grid

DATASET_HELP = "Local folder or hub name of the data set, instead of the base's."


def run_grid(runs: list[StudyRun], jobs: int, console: Console) -> int:
    """Run what is not finished, ``jobs`` at a time, in the grid's order.

    Returns
    -------
    int
        How many runs failed.

    Raises
    ------
    SettingsError
        If a folder holds a run of other settings; nothing is started then.
    """
    waiting = [run for run in runs if not run.is_finished()]
    console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished")
    with ThreadPoolExecutor(max_workers=jobs) as executor:
        codes = list(executor.map(lambda run: _run_one(run, console), waiting))
    return sum(code != 0 for code in codes)


def _run_one(run: StudyRun, console: Console) -> int:
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "simulations", "run"]
    if (run.folder / "checkpoint.npz").exists():
        command += ["--resume", str(run.folder)]
    else:
        config = run.folder / "study.toml"
        run.settings.save(config)
        command += ["--config", str(config), "--out", str(run.folder), "--overwrite"]
    title, log_file = f"{run.method}, seed {run.seed}", run.folder / "study.log"
    console.print(f"start   {title}", markup=False, soft_wrap=True)
    with log_file.open("a") as log:
        code = subprocess.run(command, stdout=log, stderr=log).returncode
    ending = "done    " if code == 0 else "FAILED  "
    more = "" if code == 0 else f"; see {log_file}"
    console.print(f"{ending}{title}{more}", markup=False, soft_wrap=True)
    return code


def _main(
    grid: Annotated[Path, typer.Argument(help="TOML file: base, and [[method]] entries.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/study"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    dataset: Annotated[str | None, typer.Option(help=DATASET_HELP)] = None,
) -> None:
    """Run a grid of methods over seeds; call it again to continue after an interruption."""
    if run_grid(read_grid(grid, out.absolute(), dataset), jobs, Console()):
        raise typer.Exit(1)


if __name__ == "__main__":
    command(_main)()
