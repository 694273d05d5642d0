"""A round's row in rounds.csv, and its line on the terminal."""

from __future__ import annotations

import math
from dataclasses import replace
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
from strategies.traffic import Breakdown

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


def test_the_line_says_how_many_the_budget_held_back() -> None:
    report = replace(report_of([]), phase="global", held_back=3)
    assert "global  held back 3  accuracy" in line_of(report)
    assert round_row(7, report, 2.0, {}, SETTINGS)["held_back"] == 3
    assert "held back" not in line_of(report_of([1]))


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
        ClientReport(0, 10, 100, 50, 1.5, 0.5, down=Breakdown(weights=90, protocol=10, counted=80)),
        ClientReport(4, 0, 100, 0, math.nan, math.nan, "client 4: ill"),
    ]
    report = BaselineRoundReport(5, clients, restarts=1)
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
        "restarts": 1,
        "learning_rate": pytest.approx(0.2),
        "downlink_bytes": 200,
        "uplink_bytes": 50,
        "downlink_bytes_counted": 80,
        "uplink_bytes_counted": 0,
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
    assert list(tables) == ["clients", "traffic", "tests"]
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
    assert list(round_tables(5, report, None)) == ["clients", "traffic"]


def test_what_a_clients_bytes_are_is_a_table_of_its_own() -> None:
    client = AdaSplitClientReport(
        *(4, 10, 21, 210, 1.5, 0.5, "", True),
        client_memory_mb=640.5,
        down=Breakdown(1, 2, 3, 4, 5, 6, counted=7),
        up=Breakdown(10, 20, 30, 40, 50, 60, counted=70),
    )
    tables = round_tables(5, AdaSplitRoundReport(5, "global", [client], 0.5, 0.1), None)
    assert tables["traffic"] == [
        {
            "round": 5,
            "partition_id": 4,
            "up_activations": 10,
            "up_labels": 20,
            "up_gradients": 30,
            "up_weights": 40,
            "up_indices": 50,
            "up_protocol": 60,
            "down_activations": 1,
            "down_labels": 2,
            "down_gradients": 3,
            "down_weights": 4,
            "down_indices": 5,
            "down_protocol": 6,
            "uplink_bytes_counted": 70,
            "downlink_bytes_counted": 7,
        }
    ]
    [row] = tables["clients"]
    assert list(row) == [
        *("round", "partition_id", "num_examples", "downlink_bytes", "uplink_bytes"),
        *("train_seconds", "train_loss", "client_memory_mb", "failure", "picked", "server_loss"),
        *("exploitation", "exploration", "mask_density", "server_samples", "gradient_samples"),
    ]
    assert (row["uplink_bytes"], row["client_memory_mb"]) == (210, 640.5)


def test_the_initial_model_has_the_columns_of_the_rounds() -> None:
    first = initial_row({"accuracy": 0.125, "loss": 2.5}, BASELINE)
    assert (first["round"], first["accuracy"], first["clients"]) == (0, 0.125, 0)
    later = round_row(1, BaselineRoundReport(1, []), 1.0, {}, BASELINE)
    assert list(first) == list(later)
    zerofl = initial_row({"accuracy": 0.125}, RunSettings())
    assert "sparsity" in zerofl
    assert "sparsity" not in first
