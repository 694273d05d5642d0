"""Traffic by category in a report, over run folders written by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from simulations.comparison.traffic import traffic_table
from strategies.traffic import CATEGORIES
from tests.simulations.run_folders import seed_run
from zerofl_flwr.errors import DataError


def add_traffic(run: Path, rows: int = 3, scale: int = 1) -> Path:
    """Write 1 MB up of the first category to 6 MB of the last, and ten times that down, a row."""
    sizes = {f"up_{name}": scale * n * 10**6 for n, name in enumerate(CATEGORIES, start=1)}
    sizes |= {f"down_{name}": scale * n * 10**7 for n, name in enumerate(CATEGORIES, start=1)}
    table = pd.DataFrame([{"round": number, "partition_id": 0, **sizes} for number in range(rows)])
    table.to_csv(run / "traffic.csv", index=False)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [seed_run(tmp_path / name, [0.1, 0.5]) for name in ("a", "b")]


def test_megabytes_are_totals_of_a_run_and_means_over_seeds(runs: list[Path]) -> None:
    add_traffic(runs[0])
    add_traffic(runs[1], scale=3)
    table = traffic_table({"both": runs, "first": runs[:1]})
    assert table.columns.tolist() == [
        *("method", "up activations", "up labels", "up gradients", "up weights", "up indices"),
        *("up protocol", "down activations", "down labels", "down gradients", "down weights"),
        *("down indices", "down protocol"),
    ]
    first = [3, 6, 9, 12, 15, 18, 30, 60, 90, 120, 150, 180]
    assert table["method"].tolist() == ["both", "first"]
    assert table.to_numpy()[1, 1:].tolist() == pytest.approx(first)
    assert table.to_numpy()[0, 1:].tolist() == pytest.approx([2 * size for size in first])


def test_what_a_run_does_not_tell_in_whole_is_left_out(runs: list[Path]) -> None:
    assert traffic_table({"none": runs}).empty
    add_traffic(runs[0])
    add_traffic(runs[1], rows=2)  # clients.csv has three rows
    assert traffic_table({"both": runs, "first": runs[:1]})["method"].tolist() == ["first"]


def test_a_table_that_is_broken_is_told(runs: list[Path]) -> None:
    (runs[0] / "traffic.csv").write_text("round,up_labels\n1,2\n")
    with pytest.raises(DataError, match=r"traffic\.csv: columns \['up_activations'"):
        traffic_table({"m": runs})
