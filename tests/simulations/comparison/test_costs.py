from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.comparison.costs import (
    client_costs,
    client_memory,
    knows_compute,
    run_totals,
    summed_up,
)
from tests.simulations.finished_runs import add_columns, add_compute
from tests.simulations.run_folders import seed_run
from zerofl_flwr.errors import DataError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return seed_run(tmp_path / "run", [0.1, 0.5, 0.6])


def test_totals_add_up_all_rounds_and_both_sides(run: Path) -> None:
    add_compute(run, client=30.0, server=60.0)
    add_columns(run, uplink_bytes_counted=5, downlink_bytes_counted=7)
    assert knows_compute(run)
    # Bytes up and down, counted; client and all; forward of the client and of all.
    assert astuple(run_totals(run)) == (2e6, 6e6, 24, 60, 180, 20, 60)


def test_what_was_not_counted_is_not_known(run: Path) -> None:
    assert np.isnan(astuple(run_totals(run))[2:]).all()
    assert not knows_compute(run)
    add_columns(run, client_ops=30.0, uplink_bytes_counted=5)
    totals = run_totals(run)
    assert totals.client_ops == 60
    assert np.isnan([totals.total_ops, totals.counted_bytes, totals.client_forward_ops]).all()
    add_columns(run, client_ops=float("nan"))
    assert np.isnan(run_totals(run).client_ops)


def test_costs_of_a_client_are_means_over_good_replies(run: Path) -> None:
    # The failed third reply counts on the way down only.
    assert client_costs(run) == (500_000, 3_000_000, 1.5)


def test_memory_is_the_most_that_a_client_told(run: Path) -> None:
    assert np.isnan(client_memory(run))
    path = run / "clients.csv"
    clients = pd.read_csv(path)
    told = np.full(len(clients), np.nan)
    clients.assign(client_memory_mb=told).to_csv(path, index=False)
    assert np.isnan(client_memory(run))
    told[:3] = [512.5, np.inf, 300]  # infinity is no memory, whoever told it
    clients.assign(client_memory_mb=told).to_csv(path, index=False)
    assert client_memory(run) == 512.5


def test_where_nobody_was_ever_asked_no_client_cost_anything_known(run: Path) -> None:
    (run / "clients.csv").unlink()
    add_columns(run, clients=0)  # a budget may have it
    assert np.isnan(client_costs(run)).all()
    assert np.isnan(client_memory(run))
    rounds = pd.read_csv(run / "rounds.csv")
    rounds.assign(clients=[0] * (len(rounds) - 1) + [2]).to_csv(run / "rounds.csv", index=False)
    for read in (client_costs, client_memory):
        with pytest.raises(DataError, match=r"clients\.csv: the table is missing"):
            read(run)


def test_columns_are_summed_up_to_each_round_with_gaps_as_zero() -> None:
    rounds = pd.DataFrame({"a": [np.nan, 1, 2], "b": [0, 10, 20]})
    assert summed_up(rounds, "a", "b").tolist() == [0, 11, 33]


def test_missing_tables_are_told(run: Path) -> None:
    (run / "clients.csv").unlink()
    with pytest.raises(DataError, match=r"clients\.csv: the table is missing or has no rows"):
        client_costs(run)
    (run / "rounds.csv").write_text("round,uplink_bytes\n1,2\n")
    with pytest.raises(DataError, match=r"columns \['downlink_bytes'\] are missing"):
        run_totals(run)
