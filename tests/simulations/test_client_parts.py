"""Batches of a simulated client, where its state is saved, and which checkpoints it goes with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import RecordDict

from simulations import adasplit_parts, baseline_parts
from simulations.client_parts import state_folder, training_batches, validation_batches
from simulations.data import FederatedData, load_data
from simulations.settings import RunSettings
from strategies.client_rounds import StatePlan
from tests.simulations.baselines.learners import config
from tests.simulations.changed_settings import settings_with

SMALL: dict[str, Any] = {"num-clients": 8, "clients-per-round": 2, "validation-fraction": 0.2}


def small(algorithm: str = "zerofl", **changes: Any) -> RunSettings:
    return settings_with(SMALL, algorithm=algorithm, **changes)


def test_batches_are_those_of_the_partition_and_made_when_they_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = small(batch_size=50)
    partition = load_data(settings.data).partition(3)
    with monkeypatch.context() as patch:
        patch.setattr(FederatedData, "partition", lambda *_: pytest.fail("tensors were made"))
        training, validation = training_batches(settings, 3), validation_batches(settings, 3)
    assert validation is not None
    # 180 digits, of which a fifth is held out.
    assert [len(labels) for _, labels in training] == [50, 50, 44]
    assert [len(labels) for _, labels in validation] == [36]
    held_out, labels = partition.validation.tensors
    [(inputs, came)] = list(validation)
    assert torch.equal(inputs, held_out)
    assert torch.equal(came, labels)
    trained = torch.cat([labels for _, labels in training])
    assert not torch.equal(trained, partition.train.tensors[1])
    assert torch.equal(trained.sort().values, partition.train.tensors[1].sort().values)


def test_who_holds_nothing_out_tests_nothing() -> None:
    assert validation_batches(small(validation_fraction=0.0), 3) is None


@pytest.mark.parametrize(
    ("algorithm", "changes"), [("adasplit", {}), ("baseline", {"strategy": "alone"})]
)
def test_states_go_to_the_runs_folder_unless_told_or_without_checkpoints(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    def folder(**more: Any) -> Path | None:
        return state_folder(small(algorithm, **changes, **more), tmp_path)

    assert folder() == tmp_path / "clients"
    assert folder(checkpoint_every=0) is None
    assert folder(state_dir="/states") == Path("/states")
    assert folder(state_dir="/states", checkpoint_every=0) == Path("/states")


@pytest.mark.parametrize("every", [0, 1, 5])
@pytest.mark.parametrize(
    ("algorithm", "changes", "make_client"),
    [
        ("adasplit", {}, adasplit_parts.make_client),
        ("baseline", {"strategy": "alone"}, baseline_parts.make_client),
        ("baseline", {"strategy": "scaffold"}, baseline_parts.make_client),
    ],
)
def test_clients_know_how_often_the_server_keeps_a_checkpoint(
    algorithm: str,
    changes: dict[str, Any],
    make_client: Callable[..., Any],
    every: int,
    tmp_path: Path,
) -> None:
    settings = small(algorithm, **changes, checkpoint_every=every)
    client = make_client(settings, 2, RecordDict(), tmp_path)
    assert client.kept.checkpoint_every == every


def test_without_checkpoints_a_client_goes_on_after_a_lost_reply(tmp_path: Path) -> None:
    settings = small("baseline", strategy="alone", checkpoint_every=0, state_dir=str(tmp_path))
    client: Any = baseline_parts.make_client(settings, 2, RecordDict(), tmp_path)
    client.fit(client.get_parameters({}), config(1))
    first = [array.copy() for array in client.get_parameters({})]
    client.fit([], config(2, 1))
    # The server has not heard of round 2, and asks for the state of round 1.
    client.resume(StatePlan("run", 3, 1), [])
    assert all((a == b).all() for a, b in zip(client.get_parameters({}), first, strict=True))
