from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulations.comparison.accuracy import accuracies_of_tests, client_table, mean_of_last
from simulations.comparison.tested import read_rounds
from tests.simulations.finished_runs import add_tests
from tests.simulations.run_folders import seed_run
from zerofl_flwr.errors import DataError


def test_each_client_has_its_mean_over_the_last_tests_and_over_seeds(tmp_path: Path) -> None:
    first, second = (seed_run(tmp_path / name, [0.1, 0.5, 0.6, 0.7]) for name in "ab")
    add_tests(first, [[0.0, 0.0, 0.0], [0.4, 0.8, None], [0.6, 0.8, None]])
    add_tests(second, [[0.0, 0.0, 0.0], [0.8, None, 0.2], [1.0, 0.2, 0.4]])
    table = client_table({"both": [first, second], "one": [first]}, last=2)
    assert table["method"].tolist() == ["both", "both", "both", "one", "one"]
    assert table["client"].tolist() == [0, 1, 2, 0, 1]
    assert table["seeds"].tolist() == [2, 2, 1, 1, 1]
    # Client 0: 50 and 90; client 1: 80 and 20; client 2 was tested well by the second seed alone.
    assert table["accuracy"].tolist() == pytest.approx([70, 50, 30, 50, 80])
    assert table["spread"].tolist()[:2] == pytest.approx([800**0.5, 1800**0.5])
    assert np.isnan(table["spread"].tolist()[2:]).all()


def test_the_last_tests_count_however_many_rounds_lie_between(tmp_path: Path) -> None:
    run = seed_run(tmp_path / "a", [0.1, None, 0.5, None, None, None, 0.75])
    add_tests(run, [[0.0], [0.5], [0.0], [0.0], [None], [0.75]])
    tested = accuracies_of_tests(read_rounds(run))
    assert tested.tolist() == [50, 75]  # round 0 is the untrained model
    assert client_table({"m": [run]}, last=1)["accuracy"].tolist() == [75]
    assert client_table({"m": [run]}, last=2)["accuracy"].tolist() == [62.5]


@pytest.mark.parametrize(
    ("last", "before", "mean"),
    [(1, 0, 40), (2, 0, 35), (9, 0, 25), (2, 2, 15), (3, 3, 10), (2, 4, None), (1, 9, None)],
)
def test_a_mean_is_over_the_last_tests_apart_from_later_ones(
    last: int, before: int, mean: float | None
) -> None:
    found = mean_of_last(np.array([10.0, 20.0, 30.0, 40.0]), last, before)
    assert (None if np.isnan(found) else found) == mean


def test_runs_whose_clients_do_not_test_have_no_rows(tmp_path: Path) -> None:
    table = client_table({"m": [seed_run(tmp_path / "a", [0.1, 0.5])]}, last=1)
    assert table.empty
    assert table.columns.tolist() == ["method", "client", "seeds", "accuracy", "spread"]


def test_a_broken_table_is_told(tmp_path: Path) -> None:
    run = seed_run(tmp_path / "a", [0.1, 0.5])
    (run / "tests.csv").write_text("round,partition_id\n1,0\n")
    with pytest.raises(DataError, match=r"tests\.csv: columns \['accuracy'\] are missing"):
        client_table({"m": [run]}, last=1)
