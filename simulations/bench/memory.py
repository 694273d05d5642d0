"""The driver's resident memory after each round of a large simulation on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import psutil
import typer

from simulations.runner import run
from simulations.settings import RunSettings

FLAT = 1.05
"""Memory counts as flat when the last round's is at most this times the third round's."""


def main(
    dataset: Annotated[str, typer.Option(help="As for lean-flwr run.")] = "digits",
    model: Annotated[str, typer.Option(help="As for lean-flwr run.")] = "digits_cnn",
    clients: Annotated[int, typer.Option(help="Virtual clients.")] = 500,
    clients_per_round: Annotated[int, typer.Option(help="Of them in a round.")] = 50,
    rounds: Annotated[int, typer.Option(min=4, help="Rounds.")] = 10,
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/bench-memory"),
) -> None:
    """Run ZeroFL at its defaults and print resident megabytes by round."""
    settings = RunSettings.from_mapping(
        {
            "dataset": dataset,
            "model": model,
            "num-clients": clients,
            "clients-per-round": clients_per_round,
            "rounds": rounds,
            "evaluate-every": rounds,
        }
    ).resolved()
    process, resident = psutil.Process(), []

    def note(server_round: int) -> None:
        resident.append(process.memory_info().rss / 1e6)
        print(f"round {server_round}: {resident[-1]:.0f} MB")

    run(settings, out, overwrite=True, watch=note)
    ratio = resident[-1] / resident[2]
    verdict = "flat" if ratio <= FLAT else "NOT flat"
    print(f"last round / round 3: {ratio:.3f}, {verdict} (limit {FLAT})")


if __name__ == "__main__":
    typer.run(main)
