"""What two runs' folders differ in, apart from what is never twice the same."""

from __future__ import annotations

from pathlib import Path

from simulations.run_name import read_run_name
from tests.simulations.small_runs import arrays_of, table_of

ARRAYS = ("model", "zero_positions", "mask_summary")
TABLES = ("rounds", "clients", "traffic", "layers", "partitions", "tests")
ALWAYS = ("model.npz", "rounds.csv", "clients.csv", "traffic.csv")


def states_of(folder: Path, states: Path | None = None) -> dict[str, dict[str, bytes]]:
    """Read what each client of a run keeps at the end: of its states the newest.

    The run's name is left out, which is another in each folder. Without any states it is empty.
    """
    clients = states or folder / "clients"
    if not clients.exists():
        return {}
    newest = {
        client.name: max(client.glob("*.npz"), key=lambda p: int(p.stem.removeprefix("round-")))
        for client in sorted((clients / read_run_name(folder)).iterdir())
    }
    return {
        client: {name: array for name, array in arrays_of(path).items() if name != "run"}
        for client, path in newest.items()
    }


def results_of(folder: Path) -> dict[str, object]:
    """Read a run's final arrays, its tables by column, and the states of its clients."""
    missing = [name for name in ALWAYS if not (folder / name).exists()]
    if missing:
        raise FileNotFoundError(f"{folder} holds no finished run: no {', '.join(missing)}")
    found: dict[str, object] = {}
    for name in ARRAYS:
        if (path := folder / f"{name}.npz").exists():
            found |= {f"{name}.npz: {key}": array for key, array in arrays_of(path).items()}
    for name in TABLES:
        if (folder / f"{name}.csv").exists():
            table = table_of(folder, name)
            found |= {f"{name}.csv: {column}": table[column].tolist() for column in table}
    for client, state in states_of(folder).items():
        found |= {f"{client}: {key}": array for key, array in state.items()}
    return found


def differences(first: Path, second: Path) -> list[str]:
    """Name the arrays, columns and states that only one of two runs has, or has otherwise."""
    one, other = results_of(first), results_of(second)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
