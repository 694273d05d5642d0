"""The long table of tested rounds: what is summed between tests, and what is a round's own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.comparison.methods import Comparison, found_methods
from simulations.comparison.rounds import all_rounds, rounds_table
from simulations.settings import RunSettings
from tests.simulations.adasplit_run_folders import write_adasplit_run
from tests.simulations.finished_runs import add_compute, write_finished


def compared(tmp_path: Path, accuracies: list[float | None], seed: int = 1) -> Comparison:
    settings = RunSettings.from_mapping({"seed": seed, "rounds": 6})
    write_finished(tmp_path / f"seed-{seed}", settings, accuracies)
    return found_methods([tmp_path])


def table_of(comparison: Comparison) -> pd.DataFrame:
    return rounds_table(all_rounds(comparison)).reset_index(drop=True)


def test_bytes_and_seconds_are_those_since_the_test_before(tmp_path: Path) -> None:
    # The initial model, then tests after rounds 3, 4 and 6; a round takes 2 MB up, and 3 s.
    table = table_of(compared(tmp_path, [0.1, None, None, 0.5, 0.6, None, 0.7]))
    assert table["round"].tolist() == [0, 3, 4, 6]
    assert table["accuracy"].tolist() == [0.1, 0.5, 0.6, 0.7]
    assert table["uplink_bytes"].tolist() == [0, 6_000_000, 2_000_000, 4_000_000]
    assert table["train_seconds"].tolist() == [3, 9, 3, 6]
    assert table["train_loss"].tolist() == [0.9] * 4  # of that round alone


def test_totals_are_those_of_the_run(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [0.1, None, 0.4, None, 0.5])
    folder = tmp_path / "seed-1"
    add_compute(folder, client=3e12, server=1e12)
    rounds = pd.read_csv(folder / "rounds.csv")
    table = table_of(comparison)
    for column in ("uplink_bytes", "downlink_bytes", "client_ops", "server_ops", "round_seconds"):
        assert table[column].sum() == rounds[column].sum()


def test_a_run_without_a_test_has_one_row(tmp_path: Path) -> None:
    table = table_of(compared(tmp_path, [None, None, None]))
    assert table["round"].tolist() == [2]
    assert math.isnan(table["accuracy"][0])
    assert table["downlink_bytes"].tolist() == [8_000_000]


def test_what_no_round_knows_stays_unknown(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [0.1, None, 0.4])
    path = tmp_path / "seed-1" / "rounds.csv"
    pd.read_csv(path).assign(client_ops=[np.nan] * 3).to_csv(path, index=False)
    assert table_of(comparison)["client_ops"].isna().all()


def test_every_round_is_there_as_it_was_recorded(tmp_path: Path) -> None:
    compared(tmp_path, [0.1, None, 0.5])
    rounds = all_rounds(compared(tmp_path, [0.2, None, 0.6], seed=2))
    assert rounds["seed"].tolist() == [1, 1, 1, 2, 2, 2]
    assert rounds["round"].tolist() == [0, 1, 2] * 2
    assert rounds["uplink_bytes"].tolist() == [0, 2_000_000, 2_000_000] * 2
    # Sums end with a run.
    assert rounds_table(rounds)["uplink_bytes"].tolist() == [0, 4_000_000] * 2


def test_methods_with_other_columns_share_a_table(tmp_path: Path) -> None:
    compared(tmp_path, [0.1, 0.5, 0.7])
    compared(tmp_path, [0.2, 0.6, 0.8], seed=2)
    folder = tmp_path / "split"
    write_adasplit_run(folder, rounds=2)
    RunSettings.from_mapping({"algorithm": "adasplit", "rounds": 2}).save(folder / "config.toml")
    (folder / "model.npz").write_bytes(b"a model")
    table = table_of(found_methods([tmp_path]))
    split = table["method"] == "adasplit"
    assert table.loc[~split, "seed"].tolist() == [1, 1, 1, 2, 2, 2]
    assert table.loc[~split, "accuracy"].tolist() == pytest.approx([0.1, 0.5, 0.7, 0.2, 0.6, 0.8])
    assert table.loc[split, "phase"].tolist() == ["local", "global"]
    assert table.loc[~split, "phase"].isna().all()
