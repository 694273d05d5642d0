"""The commands ``lean-flwr compare``, ``sweep`` and ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from simulations.c3 import TEMPERATURE, Budgets
from zerofl_flwr.errors import SettingsError

# Pandas and matplotlib take a while to import: what needs them is imported where it is called.

_Out = Annotated[
    Path | None, typer.Option(help="Folder of the runs; default: runs/ and the file's name.")
]
_Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
_Dataset = Annotated[
    str | None,
    typer.Option(help="Local folder or hub name of the data set, instead of the base's."),
]
_Report = Annotated[
    Path | None, typer.Option(help="Folder of the report; default: report/ in that of the runs.")
]
_Bandwidth = Annotated[
    float | None,
    typer.Option(
        help="Gigabytes that the C3-Score divides a run's by; default: the most of any method.",
        metavar="GB",
    ),
]
_Compute = Annotated[
    float | None,
    typer.Option(
        help="10^12 multiply-adds that it divides those of the clients by; default: likewise.",
        metavar="T",
    ),
]
_Temperature = Annotated[
    float, typer.Option(help="T of the C3-Score: the larger, the less the cost counts.")
]


def compare(
    config: Annotated[
        Path, typer.Argument(help=escape("TOML file: base, and [[method]] entries."))
    ],
    out: _Out = None,
    jobs: _Jobs = 1,
    dataset: _Dataset = None,
    report: _Report = None,
    bandwidth_budget: _Bandwidth = None,
    compute_budget: _Compute = None,
    temperature: _Temperature = TEMPERATURE,
) -> None:
    """Run methods over seeds, and report what is finished.

    Call it again to continue after an interruption: what is finished is not run again.
    """
    budgets = Budgets(bandwidth_budget, compute_budget, temperature)
    _run_and_report(config, out, jobs, dataset, report, budgets, is_sweep=False)


def sweep(
    config: Annotated[
        Path,
        typer.Argument(help=escape("TOML file: base, seeds, and [sweep] with lists of values.")),
    ],
    out: _Out = None,
    jobs: _Jobs = 1,
    dataset: _Dataset = None,
    report: _Report = None,
    bandwidth_budget: _Bandwidth = None,
    compute_budget: _Compute = None,
    temperature: _Temperature = TEMPERATURE,
) -> None:
    """Run every combination of some settings' values, and report what is finished.

    Call it again to continue after an interruption: what is finished is not run again.
    """
    budgets = Budgets(bandwidth_budget, compute_budget, temperature)
    _run_and_report(config, out, jobs, dataset, report, budgets, is_sweep=True)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, or folders that hold some.", metavar="RUNS..."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("runs/report"),
    grid: Annotated[
        Path | None,
        typer.Option(
            help="File of the comparison or sweep whose runs these are: their names, order and "
            "figures are taken from it. Without one, runs that differ in their seed alone are one "
            "method, which is named by its settings."
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="With --grid: the data set that its runs were given.")
    ] = None,
    last_tests: Annotated[
        int | None,
        typer.Option(
            help="Without --grid: tests at a run's end that accuracy is averaged over; default: 1."
        ),
    ] = None,
    tests: Annotated[
        str | None,
        typer.Option(
            help="Without --grid: whose tests accuracy is of: recorded, as each run has it, or "
            "clients, the mean over the clients' own; default: recorded."
        ),
    ] = None,
    bandwidth_budget: _Bandwidth = None,
    compute_budget: _Compute = None,
    temperature: _Temperature = TEMPERATURE,
) -> None:
    """Write tables, pictures and one page, to be read offline, about finished runs."""
    from simulations.comparison.grid import read_grid
    from simulations.comparison.methods import finished_methods, found_methods
    from simulations.comparison.report import write_report
    from simulations.comparison.tested import RECORDED, checked_tests

    budgets = Budgets(bandwidth_budget, compute_budget, temperature)
    folders, out = [folder.absolute() for folder in runs], out.absolute()
    if grid is None:
        if dataset is not None:
            raise SettingsError("--dataset belongs to --grid; runs know what they were given")
        found = found_methods(
            folders,
            1 if last_tests is None else last_tests,
            RECORDED if tests is None else checked_tests(tests),
        )
        title = "Comparison"
    else:
        for option, value in (("--last-tests", last_tests), ("--tests", tests)):
            if value is not None:
                raise SettingsError(f"{option} does not go with --grid; set it in {grid}")
        if len(folders) != 1:
            raise SettingsError(f"--grid goes with one folder of runs, not {len(folders)}")
        found = finished_methods(read_grid(grid, folders[0], dataset))
        title = _name(grid)
    write_report(found, out, budgets, title)
    _say_written(Console(), found.notes, out)


def _run_and_report(
    config: Path,
    out: Path | None,
    jobs: int,
    dataset: str | None,
    report_folder: Path | None,
    budgets: Budgets,
    *,
    is_sweep: bool,
) -> None:
    """Run a grid, and end with exit code 1 when a run failed."""
    from simulations.comparison.grid import read_grid
    from simulations.comparison.methods import finished_methods
    from simulations.comparison.report import write_report
    from simulations.comparison.running import run_grid

    console = Console()
    out = (out or Path("runs") / _name(config)).absolute()
    grid = read_grid(config, out, dataset)
    if grid.is_sweep != is_sweep:
        holds, command = ("a [sweep]", "sweep") if grid.is_sweep else ("[[method]]s", "compare")
        raise SettingsError(f"{config} has {holds}; run it with lean-flwr {command}")
    try:
        failed = run_grid(grid.runs, jobs, console)
    except KeyboardInterrupt:
        text = "interrupted; the same command continues"
        Console(stderr=True).print(text, soft_wrap=True, markup=False, highlight=False)
        raise typer.Exit(130) from None
    found = finished_methods(grid)
    if found.methods:
        folder = (report_folder or out / "report").absolute()
        write_report(found, folder, budgets, _name(config))
        _say_written(console, found.notes, folder)
    if failed:
        raise typer.Exit(1)


def _name(config: Path) -> str:
    return config.stem.removesuffix("-grid")


def _say_written(console: Console, notes: Sequence[str], folder: Path) -> None:
    for line in (*(f"note: {note}" for note in notes), f"report: {folder / 'index.html'}"):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
