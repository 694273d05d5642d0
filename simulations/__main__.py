"""The command line: ``lean-flwr run zerofl --clients ...``, ``lean-flwr report runs/first``."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from simulations.comparison.commands import compare, report, sweep
from simulations.plan_command import plan
from simulations.setting_groups import (
    PAPER,
    UNSET,
    all_fields,
    default_text,
    fields_of,
    help_texts,
    type_of,
)
from simulations.settings import RunSettings, read_config
from simulations.simulation_settings import ALGORITHMS
from zerofl_flwr.errors import LeanFlwrError, SettingsError

app = typer.Typer(
    name="lean-flwr",
    help="Federated learning on Flower for devices short of compute and bandwidth.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_PANELS = {
    "simulation": "Simulation",
    "data": "Data and clients",
    "training": "Local training",
    "zerofl": "ZeroFL",
    "split": "AdaSplit: the cut",
    "adasplit": "AdaSplit",
    "budget": "AdaSplit: the budget",
    "baseline": "Baselines",
}
_METHOD_OF = {
    "zerofl": "zerofl",
    "split": "adasplit",
    "adasplit": "adasplit",
    "budget": "adasplit",
    "baseline": "baseline",
}
"""Panels of one method. Settings of the other panels are for all, unless their help says not."""
_OPTIONS_ONLY = ("out", "resume", "overwrite")
# Shorter names for what is typed most.
_ALIASES = {"num-clients": "clients"}


def _run(
    algorithm: str | None,
    config: Path | None,
    out: Path | None,
    resume: Path | None,
    overwrite: bool,
    **options: Any,
) -> None:
    """Run a simulation, or continue one with --resume.

    ALGORITHM is zerofl, adasplit or baseline. Settings come from the defaults, then from --config,
    then from the options given here.
    """
    from simulations.runner import resume as resume_run  # Flower and pandas take a while to import
    from simulations.runner import run

    given = {key.replace("_", "-"): value for key, value in options.items() if value is not None}
    if resume is not None:
        if given or algorithm or config or out or overwrite:
            raise SettingsError("--resume takes everything from the run's folder: give it alone")
        folder = resume.absolute()
        start = partial(resume_run, folder)
    else:
        values = read_config(config) if config else {}
        for name in _OPTIONS_ONLY:
            if name in values:
                raise SettingsError(f"{config}: {name} is no setting of a run; pass --{name}")
        values |= given
        if algorithm is not None:
            values["algorithm"] = algorithm
        settings = RunSettings.from_mapping(values).resolved()
        stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
        default = Path("runs") / f"{settings.simulation.algorithm}-{stamp}"
        folder = (out or default).absolute()
        start = partial(run, settings, folder, overwrite=overwrite)
    try:
        start()
    except KeyboardInterrupt:
        _say_interrupted(folder)
        _leave(130)
    Console().print(f"results: {folder}", soft_wrap=True, markup=False, highlight=False)


def _with_setting_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add one command-line option per setting, described by the settings' own docstrings."""
    fixed = [
        (
            "algorithm",
            Annotated[str | None, typer.Argument(help=f"Method to run: {', '.join(ALGORITHMS)}.")],
            None,
        ),
        (
            "config",
            Annotated[Path | None, typer.Option(help="TOML file with the same keys.")],
            None,
        ),
        (
            "out",
            Annotated[
                Path | None, typer.Option(help="Folder for results; default: runs/METHOD-TIME.")
            ],
            None,
        ),
        (
            "resume",
            Annotated[
                Path | None, typer.Option(help="Continue the run in this folder, to its end.")
            ],
            None,
        ),
        ("overwrite", Annotated[bool, typer.Option(help="Replace a run in --out.")], False),
        (
            PAPER,
            Annotated[
                bool | None,
                typer.Option(
                    help="What is not given is as in the paper, instead of as in our study: "
                    "constant sparsity, a mean over all clients, the small models' input layer "
                    "sparse.",
                    show_default=False,
                ),
            ],
            None,
        ),
    ]
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in fixed
    ]
    users = {name: {key for _, key, _ in fields_of(name)} for name in ALGORITHMS}
    for group, key, setting in all_fields():
        if key == "algorithm":
            continue
        plain, _ = type_of(group, setting)
        flags = [f"--{_ALIASES[key]}", f"--{key}"] if key in _ALIASES else [f"--{key}"]
        if plain is bool:
            flags = [f"--{key}/--no-{key}"]
        option = typer.Option(
            *flags,
            help=escape(f"{_help_of(group, setting)}{_users_text(group, key, users)}"),
            rich_help_panel=_PANELS[group],
            show_default=False,  # it is None here, which stands for "not given"
        )
        parameters.append(
            inspect.Parameter(
                setting.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[plain | None, option],
            )
        )
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in parameters}
    return function


def _help_of(group: str, setting: Field[Any]) -> str:
    """Return a setting's description and default, in plain text, other settings as options."""
    text = help_texts(group)[setting.name]
    for _, key, other in all_fields():
        text = text.replace(f" `{other.name}`", f" --{key}")
    text = text.replace("`", "")
    if default_text(setting) == UNSET and "default: " in text.lower():
        return text  # it says what happens then
    return f"{text} (default: {default_text(setting)})"


def _users_text(group: str, key: str, keys_of: Mapping[str, Collection[str]]) -> str:
    """Name the methods that take a setting, or do not, other than its panel would have it."""
    home = _METHOD_OF.get(group)
    others = [
        name for name, keys in keys_of.items() if name != home and (key in keys) == bool(home)
    ]
    if not others:
        return ""
    return f" Also for {' and '.join(others)}." if home else f" Not for {' or '.join(others)}."


app.command(name="run")(_with_setting_options(_run))
app.command(name="compare")(compare)
app.command(name="sweep")(sweep)
app.command(name="report")(report)
app.command(name="plan")(plan)


@app.command(name="export")
def _export(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run that has a checkpoint or has ended.")
    ],
    out: Annotated[
        Path,
        typer.Option(help="File to write: .pt for torch.load(..., weights_only=True), or .npz."),
    ],
    client: Annotated[
        int | None,
        typer.Option(
            help="Whose network, with adasplit and alone; else there is one for all.", metavar="N"
        ),
    ] = None,
) -> None:
    """Write a run's trained network to a file, for use in plain torch.

    The file holds a state_dict of the run's model, not cut and without a head.
    """
    from simulations.export import export

    out = out.absolute()
    exported = export(run, client, out)
    console = Console()
    for note in exported.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
    text = f"network after round {exported.server_round}: {out}"
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def main() -> None:
    """Run the command line; an error of ours is one message, not a traceback."""
    try:
        app()
    except LeanFlwrError as error:
        message = f"[bold red]error:[/] {escape(str(error))}"
        Console(stderr=True).print(message, soft_wrap=True, highlight=False)
        _leave(2)
    except Exception:
        traceback.print_exc()
        _leave(1)


def _say_interrupted(folder: Path) -> None:
    text = "interrupted"
    if (folder / "checkpoint.npz").exists():
        text += f"; to continue: lean-flwr run --resume {folder}"
    Console(stderr=True).print(text, soft_wrap=True, markup=False, highlight=False)


def _leave(code: int) -> NoReturn:
    """End the process, even while Flower's server thread waits for replies that never come."""
    waiting = [
        t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()
    ]
    if waiting:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
