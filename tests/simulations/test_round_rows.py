"""A round's row in rounds.csv, and its line on the terminal."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simulations.round_rows import initial_row, round_line, round_row, round_tables
from simulations.settings import RunSettings
from strategies import (
    AdaSplitRoundReport,
    BaselineRoundReport,
    ClientReport,
    ClientTest,
    ClientTestReport,
)
from strategies.adasplit_report import AdaSplitClientReport

SETTINGS = RunSettings.from_mapping({"algorithm": "adasplit"})


def report_of(picked: list[int], clients: int = 10) -> AdaSplitRoundReport:
    told = [AdaSplitClientReport(p, 8, 100, 50, 1.5, 0.5, "", p in picked) for p in range(clients)]
    phase = "global" if picked else "local"
    return AdaSplitRoundReport(7, phase, told, 0.75 if picked else math.nan, 0.1)


def line_of(report: AdaSplitRoundReport) -> str:
    test = {"accuracy": 0.5, "loss": 1.25}
    return round_line(round_row(7, report, 2.0, test, SETTINGS), report, 10, test)


@pytest.mark.parametrize(
    ("picked", "words"),
    [
        ([0, 2, 4], "global  picked 0,2,4  server loss  0.750  accuracy"),
        ([1, 3, 5, 7, 9], "global  picked 1,3,5,7,9  server loss"),
        ([0, 1, 2, 3, 4, 5], "global    6 picked  server loss"),
        ([], "round  7/10  local   accuracy  50.0 %"),
    ],
)
def test_the_line_names_who_was_picked_if_they_are_few(picked: list[int], words: str) -> None:
    report = report_of(picked)
    assert words in line_of(report)
    assert round_row(7, report, 2.0, {}, SETTINGS)["picked"] == len(picked)


def test_accuracies_of_those_that_trained_and_that_were_learned_from_stand_together() -> None:
    test: dict[str, Any] = {"accuracy": 0.5, "trained_accuracy": 0.625, "learned_accuracy": 0.75}
    row = round_row(7, report_of([1]), 2.0, test, SETTINGS)
    names = list(row)
    at = names.index("trained_accuracy")
    assert names[at : at + 2] == ["trained_accuracy", "learned_accuracy"]
    assert (row["trained_accuracy"], row["learned_accuracy"]) == (0.625, 0.75)
    untold = round_row(7, report_of([1]), 2.0, {}, SETTINGS)
    assert math.isnan(untold["learned_accuracy"])


BASELINE = RunSettings.from_mapping(
    {"algorithm": "baseline", "rounds": 9, "learning-rate": 0.4, "learning-rate-end": 0.1}
)


def test_a_baselines_row_and_line_tell_what_its_report_does() -> None:
    clients = [
        ClientReport(0, 10, 100, 50, 1.5, 0.5),
        ClientReport(4, 0, 100, 0, math.nan, math.nan, "client 4: ill"),
    ]
    report = BaselineRoundReport(5, clients)
    test = {"accuracy": 0.5, "trained_accuracy": 0.75, "loss": 1.25, "evaluation_failures": 1.0}
    row = round_row(5, report, 2.0, test | {"evaluation_uplink_bytes": 7.0}, BASELINE)
    assert row == {
        "round": 5,
        "loss": 1.25,
        "accuracy": 0.5,
        "trained_accuracy": 0.75,
        "train_loss": 0.5,
        "clients": 2,
        "replies": 1,
        "failures": 1,
        "learning_rate": pytest.approx(0.2),
        "downlink_bytes": 200,
        "uplink_bytes": 50,
        "test_downlink_bytes": 0,
        "test_uplink_bytes": 7,
        "test_failures": 1,
        "train_seconds": 1.5,
        "round_seconds": 2.0,
    }
    line = round_line(row, report, 9, test)
    assert line.startswith("round 5/9  accuracy  50.0 %  loss  1.250  up     0.00 MB")


def test_a_tests_clients_are_a_table_of_any_method() -> None:
    report = BaselineRoundReport(5, [ClientReport(0, 10, 100, 50, 1.5, 0.5)])
    tests = ClientTestReport(5, [ClientTest(0, 8, True, 0.5, 1.25, 90, 9)])
    tables = round_tables(5, report, tests)
    assert list(tables) == ["clients", "tests"]
    assert tables["tests"] == [
        {
            "round": 5,
            "partition_id": 0,
            "num_examples": 8,
            "trained": True,
            "accuracy": 0.5,
            "loss": 1.25,
            "downlink_bytes": 90,
            "uplink_bytes": 9,
            "failure": "",
        }
    ]
    assert list(round_tables(5, report, None)) == ["clients"]


def test_the_initial_model_has_the_columns_of_the_rounds() -> None:
    first = initial_row({"accuracy": 0.125, "loss": 2.5}, BASELINE)
    assert (first["round"], first["accuracy"], first["clients"]) == (0, 0.125, 0)
    later = round_row(1, BaselineRoundReport(1, []), 1.0, {}, BASELINE)
    assert list(first) == list(later)
    zerofl = initial_row({"accuracy": 0.125}, RunSettings())
    assert "sparsity" in zerofl
    assert "sparsity" not in first
