"""A round's row in rounds.csv, and its line on the terminal."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simulations.round_rows import round_line, round_row
from simulations.settings import RunSettings
from strategies import AdaSplitRoundReport
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
