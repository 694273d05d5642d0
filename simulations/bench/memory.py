"""The driver's resident memory after each round of a large simulation on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import psutil
import typer

from simulations.commands import command
from simulations.runner import run
from simulations.settings import RunSettings, read_config

FLAT = 1.05
"""Memory counts as flat when the last counted round's is at most this times an early one's."""


def main(
    dataset: Annotated[str | None, typer.Option(help="As for lean-flwr run.")] = None,
    model: Annotated[str | None, typer.Option(help="As for lean-flwr run.")] = None,
    clients: Annotated[int | None, typer.Option(help="Virtual clients; 500.")] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="Of them in a round; 50.")] = None,
    rounds: Annotated[int, typer.Option(min=4, help="Rounds.")] = 10,
    config: Annotated[
        Path | None, typer.Option(help="Settings of either method, instead of the paper's ZeroFL.")
    ] = None,
    since: Annotated[int, typer.Option(min=1, help="Round that the last is compared with.")] = 3,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/bench-memory"),
) -> None:
    """Run ZeroFL with the paper's settings and print resident megabytes by round.

    Their sparsity is constant, so that every round's messages are as large.
    One more round runs than is asked for and counted: in its very last, a run also draws pictures.
    """
    zerofl = {"paper": True, "num-clients": 500, "clients-per-round": 50}
    values = zerofl if config is None else read_config(config)
    given = {
        "dataset": dataset,
        "model": model,
        "num-clients": clients,
        "clients-per-round": clients_per_round,
    }
    values |= {key: value for key, value in given.items() if value is not None}
    settings = RunSettings.from_mapping(values | {"rounds": rounds + 1}).resolved()
    process, resident = psutil.Process(), []

    def measure(server_round: int) -> None:
        resident.append(process.memory_info().rss / 1e6)
        note = ", pictures drawn, not counted" if server_round > rounds else ""
        print(f"round {server_round}: {resident[-1]:.0f} MB{note}")

    run(settings, out, overwrite=True, watch=measure)
    ratio = resident[rounds - 1] / resident[since - 1]
    verdict = "flat" if ratio <= FLAT else "NOT flat"
    print(f"round {rounds} / round {since}: {ratio:.3f}, {verdict} (limit {FLAT})")


if __name__ == "__main__":
    command(main)()
