"""Whose tests count, over run folders written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulations.comparison.tested import (
    check_client_tests,
    checked_tests,
    client_tests,
    read_rounds,
)
from tests.simulations.finished_runs import add_tests
from tests.simulations.run_folders import seed_run
from zerofl_flwr.errors import DataError, SettingsError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = seed_run(tmp_path / "a", [0.1, 0.2, None, 0.4])
    add_tests(folder, [[0.5, 1.0, None], [0.9, 0.9, 0.9], [0.25, 0.5, 0.75]])
    return folder


def test_an_accuracy_is_as_recorded_or_the_mean_over_clients(run: Path) -> None:
    recorded = read_rounds(run)["accuracy"].tolist()
    np.testing.assert_equal(recorded, [0.1, 0.2, np.nan, 0.4])
    # A failed test counts for nothing, and so do those of a round that is not a tested one.
    of_clients = read_rounds(run, "clients")["accuracy"].tolist()
    np.testing.assert_equal(of_clients, [np.nan, 0.75, np.nan, 0.5])


def test_good_tests_of_clients_are_kept_and_no_others(run: Path) -> None:
    found = client_tests(run)
    assert found is not None
    assert found["round"].tolist() == [1, 1, 3, 3, 3]
    assert found["partition_id"].tolist() == [0, 1, 0, 1, 2]
    (run / "tests.csv").write_text("round,partition_id,accuracy\n0,0,0.5\n1,,0.5\n1,4,0.25\n")
    found = client_tests(run)
    assert found is not None
    assert found.to_numpy().tolist() == [[1, 4, 0.25]]


def test_a_run_whose_clients_do_not_test_is_refused_by_its_method(
    run: Path, tmp_path: Path
) -> None:
    check_client_tests({"fine": [run]})
    other = seed_run(tmp_path / "b", [0.1, 0.2])
    assert client_tests(other) is None
    with pytest.raises(DataError, match=r"method 'x': .*b has no tests\.csv.* fraction-evaluate"):
        check_client_tests({"fine": [run], "x": [run, other]})
    with pytest.raises(DataError, match=r"b has no tests\.csv"):
        read_rounds(other, "clients")
    with pytest.raises(DataError, match="method 'none' has no runs"):
        check_client_tests({"none": []})


def test_a_table_that_lacks_a_column_is_told(run: Path) -> None:
    with pytest.raises(DataError, match=r"rounds\.csv: columns \['client_ops'\] are missing"):
        read_rounds(run, columns=["client_ops"])
    (run / "tests.csv").write_text("round,partition_id\n1,0\n")
    with pytest.raises(DataError, match=r"tests\.csv: columns \['accuracy'\] are missing"):
        read_rounds(run, "clients")


def test_another_choice_is_refused_with_the_nearest() -> None:
    assert (checked_tests("recorded"), checked_tests("clients")) == ("recorded", "clients")
    with pytest.raises(SettingsError, match="'record'; did you mean 'recorded'"):
        checked_tests("record")
