from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.c3 import Budgets
from simulations.comparison.summary import SUMMARY_COLUMNS, summary_table
from tests.simulations.finished_runs import add_columns, add_compute, add_tests
from tests.simulations.run_folders import seed_run
from zerofl_flwr.errors import DataError, SettingsError


def test_summary_of_two_seeds(two_seeds: list[Path]) -> None:
    table = summary_table({"r = .2": two_seeds}, last=2)
    # Each seed's last two tests: 30 and 50, 80 and 60; those before: 10 and 20, 20 and 40. Round 0
    # is the untrained model and never counts.
    assert table.columns.tolist() == [
        *("method", "seeds", "accuracy", "spread", "best", "lowest client", "C3", "GB"),
        *("client T multiply-adds", "total T multiply-adds", "rounds", "previous"),
        *("uplink MB per client and round", "downlink MB per client and round"),
        *("client seconds per round", "client memory MB", "uplink GB", "downlink GB"),
        *("counted GB", "client T multiply-adds forward", "total T multiply-adds forward"),
        "C3 as counted",
    ]
    [row] = table.dropna(axis="columns").to_numpy().tolist()
    assert row[:2] == ["r = .2", 2]
    # Sample deviation of 40 and 70 is sqrt(450). The failed reply counts on the way down only.
    # Five rounds of 1 MB up and 3 MB down.
    expected = [55.0, 450**0.5, 65.0, 0.02, 5, 22.5, 0.5, 3.0, 1.5, 0.005, 0.015]
    assert row[2:] == pytest.approx(expected)


def test_memory_is_the_most_of_any_run_that_tells(two_seeds: list[Path]) -> None:
    path = two_seeds[1] / "clients.csv"
    pd.read_csv(path).assign(client_memory_mb=640.5).to_csv(path, index=False)
    table = summary_table({"both": two_seeds, "first": two_seeds[:1]})
    np.testing.assert_equal(table["client memory MB"].tolist(), [640.5, np.nan])


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
    assert table.columns.tolist() == list(SUMMARY_COLUMNS)


def test_never_evaluated_is_empty_not_zero(tmp_path: Path) -> None:
    table = summary_table({"m": [seed_run(tmp_path / "a", [0.1, None, None])]})
    assert table[["accuracy", "previous", "best"]].isna().all(axis=None)


def test_what_cannot_be_summarised_is_refused(two_seeds: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="at least 1 test, not 0"):
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


def test_compute_and_the_c3_score_are_there_where_runs_counted(two_seeds: list[Path]) -> None:
    for folder, client in zip(two_seeds, (1e12, 3e12), strict=True):
        add_compute(folder, client=client, server=6e12)
        add_columns(folder, uplink_bytes_counted=800_000, downlink_bytes_counted=2_200_000)
    table = summary_table({"both": two_seeds, "one": two_seeds[:1]}, last=2)
    # Five rounds of 2 T on the mean and of 1 T; a third of them forward.
    assert table["client T multiply-adds"].tolist() == pytest.approx([10, 5])
    assert table["total T multiply-adds"].tolist() == pytest.approx([40, 35])
    assert table["client T multiply-adds forward"].tolist() == pytest.approx([10 / 3, 5 / 3])
    assert table["total T multiply-adds forward"].tolist() == pytest.approx([40 / 3, 35 / 3])
    assert table["counted GB"].tolist() == pytest.approx([0.015, 0.015])
    # 20 MB each way for both, so B is 1; C is 1 and 1/2: e^(-2/8) and e^(-1.5/8).
    expected = pytest.approx([0.55 * 0.7788007831, 0.4 * 0.8290291181])
    assert table["C3"].tolist() == expected
    assert table["C3 as counted"].tolist() == expected
    budgets = Budgets(bandwidth=0.04, compute=20.0, temperature=1.0)
    given = summary_table({"both": two_seeds}, last=2, budgets=budgets)
    # 20 of 40 MB, 10 of 20 T: e^-1; counted 15 of 40 MB and 10/3 of 20 T.
    assert given["C3"].tolist() == pytest.approx([0.55 * 0.3678794412])
    assert given["C3 as counted"].tolist() == pytest.approx([0.55 * math.exp(-0.375 - 1 / 6)])


def test_what_older_runs_did_not_count_is_empty_and_not_zero(two_seeds: list[Path]) -> None:
    add_compute(two_seeds[0], client=1e12, server=0)
    table = summary_table({"new": two_seeds[:1], "old": two_seeds[1:], "both": two_seeds})
    counts = ["client T multiply-adds", "total T multiply-adds"]
    counts += ["client T multiply-adds forward", "total T multiply-adds forward"]
    for column in (*counts, "counted GB", "C3 as counted"):
        known = column not in ("counted GB", "C3 as counted")
        assert table[column].isna().tolist() == [not known, True, True], column
    assert table["C3"].isna().tolist() == [False, True, True]
    # The run without a count still sets the largest bandwidth: B is 1, and C is 1.
    assert table["C3"].tolist()[0] == pytest.approx(0.5 * 0.7788007831)


def test_the_lowest_client_is_a_mean_over_seeds(two_seeds: list[Path]) -> None:
    add_tests(two_seeds[0], [[0.1, 0.1]] * 4 + [[0.9, 0.4]])
    add_tests(two_seeds[1], [[0.1, 0.1]] * 4 + [[0.5, 0.8]])
    table = summary_table({"both": two_seeds, "first": two_seeds[:1]})
    # Client 0 has 70 on the mean, client 1 has 60.
    assert table["lowest client"].tolist() == pytest.approx([60, 40])


def test_a_perfect_accuracy_has_a_score(tmp_path: Path) -> None:
    folder = seed_run(tmp_path / "a", [0.1, *[1.0] * 3])
    add_compute(folder, client=1e12, server=0)
    table = summary_table({"m": [folder] * 3}, last=3)
    assert table["C3"].tolist() == pytest.approx([0.7788007831])


def test_accuracies_may_be_of_the_clients_tests(two_seeds: list[Path], tmp_path: Path) -> None:
    add_tests(two_seeds[0], [[0.2, 0.4], [0.9, 0.7], [0.6, 0.2], [0.0, 0.0], [0.4, None]])
    add_tests(two_seeds[1], [[0.1, 0.3], [0.5, 0.1], [0.0, 0.0], [0.2, 0.8], [0.9, 0.7]])
    for folder in two_seeds:
        add_compute(folder, client=1e12, server=0)
    [row] = summary_table({"both": two_seeds}, last=2, tests="clients").to_dict("records")
    # The first seed has no test in round 4, the second none in round 3. The last two have 40 and
    # 40, 50 and 80; those before 30 and 80, 20 and 30.
    assert row["accuracy"] == pytest.approx((40 + 65) / 2)
    assert row["spread"] == pytest.approx(25 / 2**0.5)
    assert row["previous"] == pytest.approx((55 + 25) / 2)
    assert row["best"] == pytest.approx(80)
    # Client 0: 50 and 55; client 1: 20 and 75.
    assert row["lowest client"] == pytest.approx(47.5)
    assert row["C3"] == pytest.approx(0.525 * 0.7788007831)
    untested = seed_run(tmp_path / "untested", [0.1, 0.2])
    with pytest.raises(DataError, match=r"method 'm': .*untested has no tests\.csv"):
        summary_table({"both": two_seeds, "m": [untested]}, tests="clients")


def test_who_overruns_a_budget_of_zero_is_named(two_seeds: list[Path]) -> None:
    add_compute(two_seeds[0], client=1e12, server=0)
    message = "method 'r = .2': bandwidth is 0.02, but its budget is 0: there is no such score"
    with pytest.raises(SettingsError, match=message):
        summary_table({"r = .2": two_seeds[:1]}, budgets=Budgets(bandwidth=0.0))
