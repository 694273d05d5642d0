"""Networks taken out of runs: what plain torch makes of them is what the run's tables say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from simulations import recorder as recorder_module
from simulations.data import load_data
from simulations.export import export, export_network
from simulations.models import build_model
from simulations.runner import resume, run
from tests.simulations import own_networks
from tests.simulations.small_runs import Stopped, arrays_of, small, stopped_after, table_of
from tests.simulations.small_split_runs import small_split
from zerofl_flwr import masked_weight_names, sparsify
from zerofl_flwr.threads import available_cpus

RANDOM_MASK = "its mask is the random one that it starts with, on which nothing was trained"


@pytest.fixture(autouse=True)
def _no_plots_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Drawing takes seconds. Clients test with one thread, and so does this file."""
    monkeypatch.setattr(recorder_module, "write_plots", lambda folder: [])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished AdaSplit run, which no test may change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder_module, "write_plots", lambda folder: [])
        return run(small_split(), tmp_path_factory.mktemp("finished") / "run")


@torch.no_grad()
def figures_of(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """Test a network in plain torch; returns accuracy and mean loss."""
    model.eval()
    inputs, labels = data.tensors
    loss, right = 0.0, 0
    for start in range(0, len(labels), 256):
        part = slice(start, start + 256)
        logits = model(inputs[part])
        loss += nn.functional.cross_entropy(logits, labels[part]).item() * len(labels[part])
        right += int((logits.argmax(dim=1) == labels[part]).sum())
    return right / len(labels), loss / len(labels)


def loaded(model: nn.Module, path: Path) -> nn.Module:
    model.load_state_dict(torch.load(path, weights_only=True))
    return model


def digits_cnn() -> nn.Module:
    return build_model("digits_cnn", 10, (1, 8, 8), seed=99)


def last_rows(folder: Path) -> dict[int, tuple[float, float]]:
    """Return what a run's table says of each client's last test: accuracy and loss."""
    tests = table_of(folder, "tests")
    return rows_of(folder, int(tests["round"].iloc[-1]))


def rows_of(folder: Path, server_round: int) -> dict[int, tuple[float, float]]:
    """Return the same of the test after a round, every digit as it was written."""
    table = table_of(folder, "tests").query(f"round == '{server_round}'")
    columns = (table[name] for name in ("partition_id", "accuracy", "loss"))
    return {int(row[0]): (float(row[1]), float(row[2])) for row in zip(*columns, strict=True)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mask": "hard", "mask_memory_mb": 1},
        {"mask": "none"},
        {"client_weights": "averaged"},
        {"client_weights": "relayed", "rounds": 8, "kappa": 0.0},
        {"inference": "server", "server_gradient": "selected", "cut": "relu3"},
    ],
)
def test_each_clients_network_tests_in_plain_torch_as_in_the_run(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = small_split(**changes)
    folder = run(settings, tmp_path / "run")
    data = load_data(settings.data)
    results = {}
    for client in range(8):
        path = tmp_path / f"client-{client}.pt"
        assert export(folder, client, path).server_round == settings.simulation.rounds
        results[client] = figures_of(loaded(digits_cnn(), path), data.partition(client).validation)
    assert results == last_rows(folder)
    assert len({loss for _, loss in results.values()}) == 8


def test_a_network_with_running_statistics_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    """The clients have come further: their newer states are there as well."""
    settings = small_split(
        model="tests.simulations.own_networks:normed", cut="3", checkpoint_every=2, rounds=6
    )
    with stopped_after(3), pytest.raises(Stopped):
        run(settings, tmp_path / "run")
    data, results = load_data(settings.data), {}
    for client in range(8):
        exported = export(tmp_path / "run", client, tmp_path / "client.pt")
        assert exported.server_round == 2
        assert "the run has not ended: this is the network after round 2 of 6" in exported.notes
        net = loaded(own_networks.normed(10, 1), tmp_path / "client.pt")
        assert list(exported.arrays) == list(net.state_dict())
        results[client] = figures_of(net, data.partition(client).validation)
    assert results == rows_of(tmp_path / "run", 2)
    newer = rows_of(tmp_path / "run", 3)
    assert all(newer[client] != result for client, result in results.items())


def test_notes_say_who_has_not_trained_and_whose_mask_has_not(finished: Path) -> None:
    tests = pd.read_csv(finished / "tests.csv").query("round == 3").set_index("partition_id")
    notes = {client: export_network(finished, client).notes for client in range(8)}
    for client, trained, learned in zip(
        tests.index, tests["trained"], tests["learned"], strict=True
    ):
        expected = []
        if not trained:
            expected.append(f"client {client} has no trained part: its part is the common start")
        if not learned:
            expected.append(f"the server has never learned from client {client}: {RANDOM_MASK}")
        assert notes[client] == tuple(expected)
    assert {len(lines) for lines in notes.values()} == {0, 1, 2}


def test_notes_of_what_all_share(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with stopped_after(1), pytest.raises(Stopped):
        run(small_split(client_weights="averaged", mask="none"), shared)
    trained = pd.read_csv(shared / "tests.csv").set_index("partition_id")["trained"]
    for client in range(8):
        own = f"client {client} has not trained: its part is the one that others share"
        assert export_network(shared, client).notes == (
            "the run has not ended: this is the network after round 1 of 3",
            *([] if trained[client] else [own]),
            "the server has learned from nobody: its part is untrained",
        )
    assert trained.sum() == 3


@pytest.mark.parametrize("sharing", ["averaged", "relayed"])
def test_without_checkpoints_what_all_share_is_in_the_model_file(
    tmp_path: Path, sharing: str
) -> None:
    changes: dict[str, Any] = {"mask": "none", "client_weights": sharing}
    changes |= {"model": "tests.simulations.own_networks:normed", "cut": "3", "kappa": 0.0}
    kept = run(small_split(**changes), tmp_path / "kept")
    folder = run(small_split(checkpoint_every=0, **changes), tmp_path / "run")
    assert not (folder / "checkpoint.npz").exists()
    exported = export(folder, 5, tmp_path / "shared.pt")
    assert (exported.server_round, exported.notes) == (3, ())
    net = loaded(own_networks.normed(10, 1), tmp_path / "shared.pt")
    own = export_network(kept, 5).arrays
    assert list(exported.arrays) == list(own) == list(net.state_dict())
    counts = {name for name in own if name.endswith("num_batches_tracked")}
    assert len(counts) == 2
    assert all(np.array_equal(exported.arrays[name], own[name]) for name in own.keys() - counts)


def test_states_in_a_folder_of_their_own_are_found(tmp_path: Path) -> None:
    folder = run(small_split(state_dir=str(tmp_path / "states")), tmp_path / "run")
    assert not (folder / "clients").exists()
    client = pd.read_csv(folder / "clients.csv")["partition_id"].iloc[-1]
    export(folder, int(client), tmp_path / "own.pt")
    data = load_data(small_split().data).partition(int(client)).validation
    assert figures_of(loaded(digits_cnn(), tmp_path / "own.pt"), data) == last_rows(folder)[client]


def test_arrays_beside_the_children_keep_the_names_of_the_parts(tmp_path: Path) -> None:
    model = "tests.simulations.own_networks:tagged"
    folder = run(small_split(model=model, rounds=1), tmp_path / "run")
    exported = export_network(folder, 0)
    assert list(exported.arrays) == [
        "client.0.weight",
        "client.0.bias",
        "server.3.weight",
        "server.3.bias",
    ]
    assert exported.notes[-1] == (
        "its keys are those of the parts, client.* and server.*, for the model has other arrays "
        "than its children: tag"
    )


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
