"""Run a grid of methods and seeds, several at a time, skipping what is finished.

``python -m simulations.study GRID.toml --out runs/NAME --jobs 2``. The grid names a base config and
methods; each run is a process of its own and resumes from its checkpoint when it was interrupted.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console

from simulations.settings import RunSettings, read_config
from zerofl_flwr.errors import LeanFlwrError, SettingsError


@dataclass(frozen=True)
class StudyRun:
    """One cell of the grid."""

    method: str
    seed: int
    settings: RunSettings
    folder: Path

    def is_finished(self) -> bool:
        """Say whether the folder holds all rounds of exactly these settings.

        Raises
        ------
        SettingsError
            If it holds a run of other settings.
        """
        config = self.folder / "config.toml"
        if not config.exists():
            return False
        if RunSettings.from_mapping(read_config(config)).resolved() != self.settings:
            raise SettingsError(f"{self.folder} holds a run with other settings; move it away")
        table = self.folder / "rounds.csv"
        done = int(pd.read_csv(table)["round"].max()) if table.exists() else 0
        return done >= self.settings.simulation.rounds and (self.folder / "model.npz").exists()


def read_grid(path: Path, out: Path) -> list[StudyRun]:
    """Read a grid file: ``base``, and a list of ``[[method]]`` with name, seeds and settings.

    Raises
    ------
    SettingsError
        If a key is missing or unknown, or a cell's settings cannot work.
    """
    grid = read_config(path)
    base = read_config(path.parent / grid["base"])
    runs: list[StudyRun] = []
    ranks: list[int] = []
    for method in grid["method"]:
        if unknown := set(method) - {"name", "seeds", "settings"}:
            raise SettingsError(f"{path}: a method has unknown keys {sorted(unknown)}")
        for rank, seed in enumerate(method["seeds"]):
            ranks.append(rank)
            settings = RunSettings.from_mapping(
                {**base, **method.get("settings", {}), "seed": seed}
            ).resolved()
            folder = out / slug(method["name"]) / f"seed-{seed}"
            runs.append(StudyRun(method["name"], seed, settings, folder))
    # All methods' first seeds come first, so that an unfinished study compares them already.
    seed_rank = {id(run): rank for run, rank in zip(runs, ranks, strict=True)}
    return sorted(runs, key=lambda run: seed_rank[id(run)])


def slug(name: str) -> str:
    """Turn a method's name into a folder's."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def run_grid(runs: list[StudyRun], jobs: int, console: Console) -> int:
    """Run what is not finished, ``jobs`` at a time, in the grid's order; return the failures."""
    waiting = [run for run in runs if not run.is_finished()]
    console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished")
    with ThreadPoolExecutor(max_workers=jobs) as executor:
        codes = list(executor.map(lambda run: _run_one(run, console), waiting))
    return sum(code != 0 for code in codes)


def _run_one(run: StudyRun, console: Console) -> int:
    run.folder.mkdir(parents=True, exist_ok=True)
    command: list[Any] = [sys.executable, "-m", "simulations", "run"]
    if (run.folder / "checkpoint.npz").exists():
        command += ["--resume", run.folder]
    else:
        config = run.folder / "study.toml"
        run.settings.save(config)
        command += ["--config", config, "--out", run.folder, "--overwrite"]
    console.print(f"start   {run.method}, seed {run.seed}")
    with (run.folder / "study.log").open("a") as log:
        code = subprocess.run(list(map(str, command)), stdout=log, stderr=log).returncode
    ending = "done" if code == 0 else f"FAILED, see {run.folder / 'study.log'}"
    console.print(f"{ending:7s} {run.method}, seed {run.seed}", soft_wrap=True)
    return code


def _main(
    grid: Annotated[Path, typer.Argument(help="TOML file: base, and [[method]] entries.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/study"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
) -> None:
    """Run a grid of methods over seeds; call it again to continue after an interruption."""
    console = Console()
    try:
        failures = run_grid(read_grid(grid, out.absolute()), jobs, console)
    except (LeanFlwrError, KeyError, tomllib.TOMLDecodeError) as error:
        console.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        raise typer.Exit(2) from error
    if failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(_main)
