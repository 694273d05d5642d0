"""What a run computes and sends, told from its model, settings and data sizes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.commands import command
from simulations.run_costs import run_costs
from simulations.settings import RunSettings, read_config


def main(
    config: Annotated[Path, typer.Argument(help="Settings of an AdaSplit or ZeroFL run.")],
    dataset: Annotated[str | None, typer.Option(help="As for lean-flwr run.")] = None,
) -> None:
    """Print a run's samples, multiply-adds and bytes; tests are not counted.

    A multiply-add counts once, as in the paper; torch counts it twice. What travels as CSR because
    of its zeros is counted as if dense.
    """
    values = read_config(config)
    if dataset is not None:
        values["dataset"] = dataset
    costs = run_costs(RunSettings.from_mapping(values).resolved())
    total = costs.total
    how = "as dense arrays, exactly" if costs.is_exact else "at most"
    print(f"in all rounds of training, {how}:")
    print(f"clients: {total.trained:,} samples, and gradients of {total.returned:,}")
    print(f"server:  {total.learned:,} samples")
    for name, forward, both in (
        ("clients", total.client_forward_ops, total.client_ops),
        ("server", total.server_forward_ops, total.server_ops),
        ("total", total.forward_ops, total.ops),
    ):
        print(f"{name}: {forward / 1e12:.4g} T multiply-adds forward, {both / 1e12:.4g} in all")
    for name, parts in (("uplink", total.up), ("downlink", total.down)):
        told = ", ".join(f"{kind} {size:,}" for kind, size in parts.by_category().items() if size)
        print(f"{name}: {sum(parts.by_category().values()) / 1e9:.3f} GB; bytes: {told}")


if __name__ == "__main__":
    command(main)()
