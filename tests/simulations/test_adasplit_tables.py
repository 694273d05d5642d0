from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulations.adasplit_tables import (
    by_client,
    global_start,
    read_client_masks,
    read_own,
    read_uploads,
)
from tests.simulations.adasplit_run_folders import write_client_masks
from zerofl_flwr.errors import DataError

CLIENTS = (
    "round,partition_id,failure,picked\n"
    "2,3,,False\n"
    "2,5,,True\n"
    "4,3,broken,True\n"
    "4,,nobody knows who,False\n"
    "4,5,,False\n"
)


def write_phases(run: Path, *phases: str) -> None:
    lines = [f"{number},{phase}" for number, phase in enumerate(phases, 1)]
    (run / "rounds.csv").write_text("\n".join(["round,phase", *lines]) + "\n")


def test_a_column_is_spread_over_rounds_and_clients() -> None:
    table = pd.DataFrame(
        {
            "round": [4, 4, 2, 2, 9, 4],
            "partition_id": [7, 3, 3, 5, 3, np.nan],
            "loss": [0.7, 0.4, 0.2, np.nan, np.inf, 0.9],
        }
    )
    found = by_client(table, "loss")
    assert found is not None
    # Round 9, client 5 and the row without an id have no finite value of a client.
    assert found.rounds.tolist() == [2, 4]
    assert found.clients.tolist() == [3, 7]
    np.testing.assert_array_equal(found.values, [[0.2, np.nan], [0.4, 0.7]])


def test_a_column_without_a_value_is_none() -> None:
    table = pd.DataFrame({"round": [1, 2], "partition_id": [0, 1], "loss": [np.nan, np.nan]})
    assert by_client(table, "loss") is None


def test_a_column_that_is_no_number_is_refused() -> None:
    table = pd.DataFrame({"round": [1], "partition_id": [0], "loss": ["high"]})
    with pytest.raises(DataError, match="column 'loss'"):
        by_client(table, "loss")


def test_a_table_of_another_method_is_none_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    assert read_own(path, "picked", "failure") is None
    path.write_text("round,partition_id\n1,0\n")
    assert read_own(path, "picked", "failure") is None
    path.write_text("round,picked\n1,True\n")
    with pytest.raises(DataError, match=r"clients\.csv: columns \['failure'\] are missing"):
        read_own(path, "picked", "failure")
    path.write_text("round,picked,failure\n1,True,\n")
    table = read_own(path, "picked", "failure")
    assert table is not None
    assert len(table) == 1


@pytest.mark.parametrize(
    ("phases", "start"),
    [
        (["local", "local", "global", "global"], 3),
        (["local", "local"], None),
        (["global", "global"], None),
    ],
)
def test_the_global_phase_starts_after_a_local_one(
    tmp_path: Path, phases: list[str], start: int | None
) -> None:
    write_phases(tmp_path, *phases)
    assert global_start(tmp_path) == start


def test_without_phases_there_is_no_start(tmp_path: Path) -> None:
    assert global_start(tmp_path) is None
    (tmp_path / "rounds.csv").write_text("round,accuracy\n1,0.5\n")
    assert global_start(tmp_path) is None


def test_uploads_have_a_row_a_client_and_a_column_a_round(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(CLIENTS)
    uploads = read_uploads(tmp_path)
    assert uploads is not None
    assert uploads.rounds.tolist() == [2, 3, 4]  # nobody was asked in round 3
    assert uploads.clients.tolist() == [3, 5]
    assert uploads.asked.tolist() == [[True, False, True], [True, False, True]]
    assert uploads.uploaded.tolist() == [[False, False, False], [True, False, False]]
    assert uploads.failed.tolist() == [[False, False, True], [False, False, False]]


def test_clients_that_were_never_asked_have_a_row(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(CLIENTS)
    (tmp_path / "partitions.csv").write_text("partition_id,cat\n3,1\n4,1\n5,1\n")
    uploads = read_uploads(tmp_path)
    assert uploads is not None
    assert uploads.clients.tolist() == [3, 4, 5]
    assert uploads.asked.sum(axis=1).tolist() == [2, 0, 2]


def test_nameless_failures_alone_are_no_uploads(tmp_path: Path) -> None:
    assert read_uploads(tmp_path) is None
    (tmp_path / "clients.csv").write_text(
        "round,partition_id,failure,picked\n1,,nobody knows who,False\n"
    )
    assert read_uploads(tmp_path) is None


def test_masks_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_client_masks(tmp_path, [2, 7], [0.25, 0.5], np.array([[1, 0.3], [0.3, 1]]))
    masks = read_client_masks(tmp_path / "mask_summary.npz")
    assert masks is not None
    assert masks.clients.tolist() == [2, 7]
    assert masks.density.tolist() == [0.25, 0.5]
    assert masks.overlap.tolist() == [[1, 0.3], [0.3, 1]]


def test_masks_that_are_not_there_are_none(tmp_path: Path) -> None:
    assert read_client_masks(tmp_path / "mask_summary.npz") is None
    write_client_masks(tmp_path, [], [], np.ones((0, 0)))
    assert read_client_masks(tmp_path / "mask_summary.npz") is None


def test_broken_masks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask_summary.npz"
    write_client_masks(tmp_path, [2, 7], [0.25], np.ones((2, 2)))
    with pytest.raises(DataError, match=r"'density' should be .* shape \(2,\) for 2 clients"):
        read_client_masks(path)
    write_client_masks(tmp_path, [2, 7], [0.25, 0.5], np.ones((2, 3)))
    with pytest.raises(DataError, match=r"'overlap' should be .* float64 of shape \(2, 3\)"):
        read_client_masks(path)
    np.savez(path, allow_pickle=False, clients=np.array(["a"]))
    with pytest.raises(DataError, match="'clients' should be numbers"):
        read_client_masks(path)
    np.savez(path, allow_pickle=False, density=np.zeros(0))
    with pytest.raises(DataError, match="'clients' is missing"):
        read_client_masks(path)
    path.write_bytes(b"broken")
    with pytest.raises(DataError, match="cannot be read"):
        read_client_masks(path)
