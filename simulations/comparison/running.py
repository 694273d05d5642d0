"""Runs a grid, several runs at a time, skipping what is finished."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from simulations.comparison.grid import GridRun
from simulations.progress_bar import progress_bar


def run_grid(runs: list[GridRun], jobs: int, console: Console) -> int:
    """Run what is not finished, ``jobs`` at a time, in the grid's order.

    Each run is a process of its own, and resumes from its checkpoint when it was interrupted. The
    console gets a line when a run starts and one when it ends, and on a terminal a bar under them.

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
    finished = len(runs) - len(waiting)
    console.print(f"{finished} of {len(runs)} runs are finished")
    with progress_bar(console) as progress, ThreadPoolExecutor(max_workers=jobs) as executor:
        task = progress.add_task("runs", total=len(runs), completed=finished)

        def run_one(run: GridRun) -> int:
            code = _run_one(run, console)
            progress.advance(task)
            return code

        codes = list(executor.map(run_one, waiting))
    return sum(code != 0 for code in codes)


def _run_one(run: GridRun, console: Console) -> int:
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
