from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.summary import summary_table, to_markdown
from tests.simulations.run_folders import seed_run
from zerofl_flwr.errors import DataError, SettingsError


@pytest.fixture
def two_seeds(tmp_path: Path) -> list[Path]:
    return [
        seed_run(tmp_path / "a", [0.9, 0.10, 0.20, 0.30, None, 0.50]),
        seed_run(tmp_path / "b", [0.9, 0.20, 0.40, None, 0.80, 0.60]),
    ]


def test_summary_of_two_seeds(two_seeds: list[Path]) -> None:
    table = summary_table({"r = .2": two_seeds}, last=2)
    # Rounds 4 and 5: 50 for one seed, (80 + 60) / 2 = 70 for the other.
    # Rounds 2 and 3: (20 + 30) / 2 = 25 and 40. Round 0 is the untrained model and never counts.
    assert table.columns.tolist() == [
        "method",
        "seeds",
        "rounds",
        "accuracy",
        "spread",
        "previous",
        "best",
        "uplink MB per client and round",
        "downlink MB per client and round",
        "client seconds per round",
        "uplink GB",
        "downlink GB",
    ]
    [row] = table.to_numpy().tolist()
    assert row[:3] == ["r = .2", 2, 5]
    # Sample deviation of 50 and 70 is sqrt(200). The failed reply counts on the way down only.
    # Five rounds of 1 MB up and 3 MB down.
    expected = [60.0, 200**0.5, 32.5, 65.0, 0.5, 3.0, 1.5, 0.005, 0.015]
    assert row[3:] == pytest.approx(expected)


def test_one_seed_has_no_spread(two_seeds: list[Path]) -> None:
    table = summary_table({"one": two_seeds[:1]}, last=10)
    assert table["seeds"].tolist() == [1]
    assert np.isnan(table["spread"].tolist()[0])
    assert table["accuracy"].tolist() == pytest.approx([27.5])
    assert np.isnan(table["previous"].tolist()[0])


def test_methods_keep_their_order(two_seeds: list[Path]) -> None:
    table = summary_table({"z": two_seeds, "a": two_seeds[:1]}, last=1)
    assert table["method"].tolist() == ["z", "a"]
    assert table["accuracy"].tolist() == pytest.approx([55, 50])


def test_no_methods_give_an_empty_table() -> None:
    table = summary_table({})
    assert len(table) == 0
    assert len(table.columns) == 12


def test_never_evaluated_is_empty_not_zero(tmp_path: Path) -> None:
    table = summary_table({"m": [seed_run(tmp_path / "a", [0.1, None, None])]})
    assert table[["accuracy", "previous", "best"]].isna().all(axis=None)


def test_what_cannot_be_summarised_is_refused(two_seeds: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="at least 1 round, not 0"):
        summary_table({"m": two_seeds}, last=0)
    with pytest.raises(DataError, match="method 'm' has no runs"):
        summary_table({"m": []})
    with pytest.raises(DataError, match=r"nowhere.rounds\.csv: the table is missing"):
        summary_table({"m": [tmp_path / "nowhere"]})
    short = seed_run(tmp_path / "short", [0.1, 0.2])
    with pytest.raises(DataError, match=r"method 'm': its runs differ .* \[5, 1\]"):
        summary_table({"m": [two_seeds[0], short]})
    clients = two_seeds[0] / "clients.csv"
    lines = clients.read_text().splitlines()
    clients.write_text("\n".join([lines[0], lines[3]]) + "\n")
    with pytest.raises(DataError, match="no client ever replied well"):
        summary_table({"m": two_seeds})


def test_markdown_is_aligned_and_leaves_gaps_empty() -> None:
    table = pd.DataFrame(
        {
            "method": ["top-k, r = 0", "a|b"],
            "seeds": [1, 12],
            "accuracy": [75.456, 7.0],
            "spread": [float("nan"), 0.01234],
        }
    )
    assert to_markdown(table).splitlines() == [
        "| method       | seeds | accuracy | spread |",
        "| ------------ | ----: | -------: | -----: |",
        "| top-k, r = 0 |     1 |    75.46 |        |",
        "| a\\|b         |    12 |     7.00 | 0.0123 |",
    ]


def test_markdown_of_an_empty_table_has_only_a_head() -> None:
    lines = to_markdown(pd.DataFrame({"x": pd.Series(dtype="float64")})).splitlines()
    assert lines == ["|   x |", "| --: |"]
