"""The command ``lean-flwr plan``: the settings of a run that keep it within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.table import Table

from simulations.setting_groups import kebab
from simulations.settings import read_config
from zerofl_flwr.errors import SettingsError

if TYPE_CHECKING:
    from strategies.planning import Candidate

_SHOWN = 8
_WIDEST = 500
_GOALS = {
    "adasplit": ("learned", "steps"),
    "zerofl": ("weights up",),
}


def plan(
    config: Annotated[Path, typer.Argument(help="TOML file with settings of a run.")],
    bytes_budget: Annotated[
        float | None,
        typer.Option(help="Bytes of all messages of training, both ways.", metavar="BYTES"),
    ] = None,
    multiply_adds_budget: Annotated[
        float | None,
        typer.Option(
            help="Multiply-adds of all clients and the server, with the backward passes.",
            metavar="N",
        ),
    ] = None,
    client_bytes_budget: Annotated[
        str | None,
        typer.Option(
            help="Bytes of each client: one number for all, or one for each, with commas between, "
            "such as 1e6,5e6,none.",
            metavar="BYTES",
        ),
    ] = None,
    client_multiply_adds_budget: Annotated[
        str | None,
        typer.Option(help="Multiply-adds of each client, in the same form.", metavar="N"),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="As for lean-flwr run.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the costs of all candidates.")
    ] = None,
) -> None:
    """Choose kappa, eta and cut (adasplit), or sparsity and mask ratio (zerofl), for a budget.

    All combinations are priced without a run. Tests are not counted. What is not given is taken
    from the file, where it has a budget.
    """
    from simulations.run_costs import run_plan  # Flower and pandas take a while to import

    values = read_config(config)
    if dataset is not None:
        values["dataset"] = dataset
    given = {
        "bytes_budget": bytes_budget,
        "multiply_adds_budget": multiply_adds_budget,
        "client_bytes_budget": client_bytes_budget,
        "client_multiply_adds_budget": client_multiply_adds_budget,
    }
    values |= {kebab(name): value for name, value in given.items() if value is not None}
    chosen = run_plan(values)
    if out is not None:
        path = out.absolute()
        _write(chosen.table(), path)
    console = Console()
    ranked: list[Candidate[Any]] = list(chosen.ranked())
    algorithm = "zerofl" if "sparsity" in chosen.chosen.choice else "adasplit"
    table = _table(ranked[:_SHOWN], _GOALS[algorithm])
    # A terminal that is too narrow wraps a line, which is better than digits that are left out.
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    Console(width=max(console.width, needed)).print(table)
    fits = f"{len(ranked)} of {len(chosen.candidates)} candidates fit"
    console.print(f"{fits}; the best are above, and the first is:", highlight=False)
    keys = {kebab(name): value for name, value in chosen.chosen.choice.items()}
    if "cut" in keys:
        keys["cut"] = str(keys["cut"])
    console.print(tomli_w.dumps(keys), end="", markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        console.print(f"all candidates: {path}", markup=False, highlight=False, soft_wrap=True)


def _table(candidates: list[Candidate[Any]], goals: tuple[str, ...]) -> Table:
    """Show candidates, the best first: bytes in MB, multiply-adds in 10^9."""
    table = Table(box=None, pad_edge=False)
    for name in candidates[0].choice:
        table.add_column(kebab(name), justify="right", no_wrap=True)
    for name in (*goals, "MB up", "MB down", "G clients", "G server", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for candidate in candidates:
        total = candidate.costs.total
        table.add_row(
            *map(str, candidate.choice.values()),
            *(f"{goal:,.0f}" for goal in candidate.goals[: len(goals)]),
            _short(total.uplink_bytes / 1e6),
            _short(total.downlink_bytes / 1e6),
            _short(total.client_ops / 1e9),
            _short(total.server_ops / 1e9),
            "" if candidate.costs.is_exact else "at most",
        )
    return table


def _short(number: float) -> str:
    return f"{number:,.2f}" if number < 100 else f"{number:,.0f}"


def _write(table: Any, path: Path) -> None:
    try:
        table.to_csv(path, index=False)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror or error}") from error
