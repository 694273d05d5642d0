"""A client's own network out of a run: in plain torch it is what the run's tables say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from simulations.adasplit_export import personal_network
from simulations.data import load_data
from simulations.runner import run
from tests.simulations import own_networks
from tests.simulations.exported_networks import digits_cnn, figures_of, loaded, rows_of
from tests.simulations.small_runs import Stopped, stopped_after
from tests.simulations.small_split_runs import small_split

pytestmark = pytest.mark.usefixtures("no_plots")

RANDOM_MASK = "its mask is the random one that it starts with, on which nothing was trained"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Clients test with one thread, and so does this file."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    data, last = load_data(settings.data), settings.simulation.rounds
    results = {}
    for client in range(8):
        exported = personal_network(settings, folder, client)
        assert exported.server_round == last
        torch.set_num_threads(1)
        net = loaded(digits_cnn(), exported.arrays)
        results[client] = figures_of(net, data.partition(client).validation)
    assert results == rows_of(folder, last)
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
        exported = personal_network(settings, tmp_path / "run", client)
        assert exported.server_round == 2
        assert "the run has not ended: this is the network after round 2 of 6" in exported.notes
        torch.set_num_threads(1)
        net = loaded(own_networks.normed(10, 1), exported.arrays)
        assert list(exported.arrays) == list(net.state_dict())
        results[client] = figures_of(net, data.partition(client).validation)
    assert results == rows_of(tmp_path / "run", 2)
    newer = rows_of(tmp_path / "run", 3)
    assert all(newer[client] != result for client, result in results.items())


def test_notes_say_who_has_not_trained_and_whose_mask_has_not(split_run: Path) -> None:
    tests = pd.read_csv(split_run / "tests.csv").query("round == 3").set_index("partition_id")
    notes = {c: personal_network(small_split(), split_run, c).notes for c in range(8)}
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
    shared, settings = tmp_path / "shared", small_split(client_weights="averaged", mask="none")
    with stopped_after(1), pytest.raises(Stopped):
        run(settings, shared)
    trained = pd.read_csv(shared / "tests.csv").set_index("partition_id")["trained"]
    for client in range(8):
        own = f"client {client} has not trained: its part is the one that others share"
        assert personal_network(settings, shared, client).notes == (
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
    keeping, without = small_split(**changes), small_split(checkpoint_every=0, **changes)
    kept, folder = run(keeping, tmp_path / "kept"), run(without, tmp_path / "run")
    assert not (folder / "checkpoint.npz").exists()
    exported = personal_network(without, folder, 5)
    assert (exported.server_round, exported.notes) == (3, ())
    own = personal_network(keeping, kept, 5).arrays
    assert list(exported.arrays) == list(own) == list(own_networks.normed(10, 1).state_dict())
    counts = {name for name in own if name.endswith("num_batches_tracked")}
    assert len(counts) == 2
    assert all(np.array_equal(exported.arrays[name], own[name]) for name in own.keys() - counts)


def test_arrays_beside_the_children_keep_the_names_of_the_parts(tmp_path: Path) -> None:
    settings = small_split(model="tests.simulations.own_networks:tagged", rounds=1)
    exported = personal_network(settings, run(settings, tmp_path / "run"), 0)
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
