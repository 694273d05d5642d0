"""The tables and JSON lines of a run's folder: they grow by a round, and can be cut back to one."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from zerofl_flwr.atomic_file import replacing

TABLES = ("rounds", "clients", "traffic", "layers", "tests")
LINES = "metrics.jsonl"

Row = Mapping[str, Any]


class Journal:
    """``rounds.csv``, ``clients.csv``, ``metrics.jsonl``, and the tables that a method adds.

    The first column of each table, and a key of each JSON line, is ``round``. A row is one line of
    text, also where a client's error came with several.

    Parameters
    ----------
    folder : Path
        Where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, list[str]] = {}

    def append_initial(self, row: Row) -> None:
        """Add the test of the initial model, round 0, which only ``rounds.csv`` holds."""
        self._append("rounds", [row])

    def append_round(self, row: Row, tables: Mapping[str, Sequence[Row]]) -> None:
        """Add a finished round: its row, and those of its other tables by their names.

        ``clients.csv`` has a row a client, ``traffic.csv`` one with what its bytes are,
        ``layers.csv`` a row a masked layer (ZeroFL), ``tests.csv`` a row a client that tested.
        """
        whole = {name: [_on_one_line(item) for item in rows] for name, rows in tables.items()}
        self._append("rounds", [row])
        for name, rows in whole.items():
            self._append(name, rows)
        line = _without_nan({**row, **whole})
        with (self._folder / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def drop_after(self, server_round: int) -> None:
        """Forget later rounds, and a line that a killed run left unfinished."""
        for table in TABLES:
            _keep_lines(
                self._folder / f"{table}.csv",
                lambda line: int(line.partition(",")[0]) <= server_round,
                header=True,
            )
        _keep_lines(
            self._folder / LINES,
            lambda line: int(json.loads(line)["round"]) <= server_round,
            header=False,
        )

    def _append(self, table: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        path = self._folder / f"{table}.csv"
        is_new = not path.exists()
        if is_new:
            self._columns[table] = list(rows[0])
        elif table not in self._columns:  # a resumed run, which an older version may have begun
            self._columns[table] = list(pd.read_csv(path, nrows=0).columns)
        # Not pandas, which takes several times as long for a few rows: runs may have 10,000 rounds.
        with path.open("a", encoding="utf-8", newline="") as file:
            names = self._columns[table]
            writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """Leave a cell empty where there is no number."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _keep_lines(path: Path, keep: Callable[[str], bool], *, header: bool) -> None:
    """Rewrite a file with the whole lines that are to be kept, exactly as they were."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    first, rest = (whole[:1], whole[1:]) if header else ([], whole)
    if header and not first:  # not even the header was finished: the next row writes it
        path.unlink()
        return
    with replacing(path) as file:
        file.write("".join([*first, *filter(keep, rest)]).encode())


def _on_one_line(row: Row) -> dict[str, Any]:
    return {
        key: " ".join(value.split()) if isinstance(value, str) else value
        for key, value in row.items()
    }


def _without_nan(value: Any) -> Any:
    """Replace what is not finite by None: JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
