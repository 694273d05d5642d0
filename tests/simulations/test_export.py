"""Networks taken out of runs: what plain torch makes of them is what the run's tables say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from simulations.data import load_data
from simulations.export import export
from simulations.runner import resume, run
from tests.simulations.exported_networks import digits_cnn, figures_of, loaded, rows_of
from tests.simulations.small_runs import Stopped, arrays_of, small, stopped_after, table_of
from tests.simulations.small_split_runs import small_split
from zerofl_flwr import masked_weight_names, sparsify
from zerofl_flwr.threads import available_cpus

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Clients test with one thread, and so does this file."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_states_in_a_folder_of_their_own_are_found(tmp_path: Path) -> None:
    folder = run(small_split(state_dir=str(tmp_path / "states")), tmp_path / "run")
    assert not (folder / "clients").exists()
    client = pd.read_csv(folder / "clients.csv")["partition_id"].iloc[-1]
    export(folder, int(client), tmp_path / "own.pt")
    data = load_data(small_split().data).partition(int(client)).validation
    assert figures_of(loaded(digits_cnn(), tmp_path / "own.pt"), data) == rows_of(folder, 3)[client]


def test_the_runs_folder_stays_as_it_is_and_resumes(tmp_path: Path) -> None:
    settings = small_split(mask_memory_mb=1)
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(2), pytest.raises(Stopped):
        run(settings, tmp_path / "run")
    before = files_of(tmp_path / "run")
    for client in range(8):
        export(tmp_path / "run", client, tmp_path / "client.pt")
    assert files_of(tmp_path / "run") == before
    assert "masks/server-masks.bin" in before
    resumed = resume(tmp_path / "run")
    assert arrays_of(resumed / "model.npz") == arrays_of(unbroken / "model.npz")
    pd.testing.assert_frame_equal(table_of(resumed, "tests"), table_of(unbroken, "tests"))


@pytest.mark.parametrize("rounds_done", [1, 3])
def test_the_global_model_tests_sparse_as_in_the_run(tmp_path: Path, rounds_done: int) -> None:
    settings = small(masked="conv2,fc1")
    folder = tmp_path / "run"
    if rounds_done == 3:
        run(settings, folder)
    else:
        with stopped_after(1), pytest.raises(Stopped):
            run(settings, folder)
    before = files_of(folder)
    exported = export(folder, None, tmp_path / "model.pt")
    assert files_of(folder) == before
    row = table_of(folder, "rounds").iloc[-1]
    assert str(exported.server_round) == row["round"] == str(rounds_done)
    sparsity = {1: 0.825, 3: 0.9}[rounds_done]
    assert row["sparsity"] == str(sparsity)
    assert exported.notes[-1] == (
        f"the network was trained at sparsity {sparsity} and must be tested so: give the model to "
        f"zerofl_flwr.sparsify(model, {sparsity}, masked=['conv2', 'fc1']) first, which keeps its "
        "keys"
    )
    sparse = sparsify(digits_cnn(), sparsity, masked=["conv2", "fc1"])
    test = load_data(settings.data).test
    torch.set_num_threads(available_cpus())  # as the server tests
    accuracy, loss = figures_of(loaded(sparse, tmp_path / "model.pt"), test)
    assert (accuracy, loss) == (float(row["accuracy"]), float(row["loss"]))
    dense = figures_of(loaded(digits_cnn(), tmp_path / "model.pt"), test)
    assert dense[1] != pytest.approx(loss, rel=1e-3)
    assert masked_weight_names(sparse) == ["conv2.weight", "fc1.weight"]


def test_a_dense_model_is_no_sparse_one(tmp_path: Path) -> None:
    settings = small(sparsity=0.0, sparsity_start="", rounds=1, checkpoint_every=0)
    folder = run(settings, tmp_path / "run")
    exported = export(folder, None, tmp_path / "model.npz")
    assert (exported.server_round, exported.notes) == (1, ())
    assert arrays_of(tmp_path / "model.npz") == arrays_of(folder / "model.npz")
