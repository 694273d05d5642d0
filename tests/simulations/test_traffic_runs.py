"""What a run's bytes are: traffic.csv adds up to clients.csv and rounds.csv, for each algorithm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adasplit_flwr import batch_payload
from simulations.run_models import plain_model, split_model
from simulations.runner import run
from simulations.settings import RunSettings
from strategies.traffic import CATEGORIES
from tests.simulations.small_runs import small as small_zerofl
from tests.simulations.small_split_runs import small_split

pytestmark = pytest.mark.usefixtures("no_plots")

ACTIVATION_BYTES = 16 * 8 * 8 * 4  # of a sample, behind digits_cnn's first block
BASELINE = {
    "algorithm": "baseline",
    "strategy": "scaffold",
    "num-clients": 4,
    "clients-per-round": 2,
    "rounds": 2,
    "samples-per-client": 40,
    "validation-fraction": 0.2,
    "backend": "in-process",
}


def assert_adds_up(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Hold the tables against each other, row by row; return traffic and clients."""
    traffic, clients, rounds = (
        pd.read_csv(folder / f"{name}.csv") for name in ("traffic", "clients", "rounds")
    )
    assert traffic[["round", "partition_id"]].equals(clients[["round", "partition_id"]])
    trained = rounds[rounds["round"] > 0]
    for way, link in (("up", "uplink"), ("down", "downlink")):
        parts = traffic[[f"{way}_{category}" for category in CATEGORIES]]
        assert (parts >= 0).all(axis=None)
        assert parts.sum(axis="columns").tolist() == clients[f"{link}_bytes"].tolist()
        counted = f"{link}_bytes_counted"
        assert traffic.groupby("round")[counted].sum().tolist() == trained[counted].tolist()
    # One process serves all clients here, and its peak never falls.
    memory = clients["client_memory_mb"]
    assert (memory > 50).all()
    assert memory.groupby(clients["round"]).max().is_monotonic_increasing
    return traffic, clients


def none_of(traffic: pd.DataFrame, *columns: str) -> bool:
    return bool((traffic[list(columns)] == 0).all(axis=None))


def model_floats(settings: RunSettings) -> int:
    return sum(parameter.numel() for parameter in plain_model(settings).parameters())


def test_a_zerofl_run_uploads_weights_and_indices(tmp_path: Path) -> None:
    settings = small_zerofl(rounds=2)
    traffic, _ = assert_adds_up(run(settings, tmp_path / "run"))
    assert (traffic["down_weights"] == 4 * model_floats(settings)).all()
    assert (traffic["up_weights"] < traffic["down_weights"]).all()
    assert (traffic["up_indices"] > 0).all()
    assert none_of(traffic, "up_activations", "up_labels", "up_gradients", "down_indices")
    # The few weights that are exactly zero are not counted.
    assert (traffic["uplink_bytes_counted"] <= traffic["up_weights"]).all()
    assert (traffic["uplink_bytes_counted"] > 0.9 * traffic["up_weights"]).all()


def test_a_baselines_control_variates_are_weights(tmp_path: Path) -> None:
    settings = RunSettings.from_mapping(BASELINE)
    traffic, _ = assert_adds_up(run(settings, tmp_path / "run"))
    both = 2 * 4 * model_floats(settings)
    assert (traffic["up_weights"] == both).all()
    assert (traffic["down_weights"] == both).all()
    assert none_of(traffic, "up_activations", "up_gradients", "up_indices", "down_indices")
    # In the first round the control variate is all zeros.
    first = traffic[traffic["round"] == 1]
    assert (first["downlink_bytes_counted"] <= both / 2).all()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_dense_activations_are_samples_times_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(batch_payload, "_compact", lambda array: array)  # never CSR
    traffic, clients = assert_adds_up(run(small_split(precision=precision), tmp_path / "run"))
    samples = clients["server_samples"]
    assert samples.sum() > 0
    size = ACTIVATION_BYTES * np.dtype(precision).itemsize // 4
    assert traffic["up_activations"].tolist() == (samples * size).tolist()
    assert traffic["up_labels"].tolist() == samples.tolist()
    assert none_of(traffic, "up_gradients", "up_weights", "up_indices", "down_gradients")
    # A number that is not zero counts four bytes in either precision; ReLU makes many zeros.
    counted = traffic["uplink_bytes_counted"]
    assert (counted <= samples * ACTIVATION_BYTES).all()
    assert counted.sum() < 0.9 * ACTIVATION_BYTES * samples.sum()
    # What comes down is the common start, to each client once.
    first = ~clients.duplicated("partition_id")
    parts = split_model(small_split())
    start = sum(4 * p.numel() for part in (parts.client, parts.head) for p in part.parameters())
    assert traffic["down_weights"].tolist() == (first * start).tolist()


def test_a_split_run_with_gradients_and_shared_parts(tmp_path: Path) -> None:
    settings = small_split(
        rounds=3,
        kappa=0.0,
        eta=0.6,
        selection="all",
        mask="none",
        local_loss=False,
        server_gradient="selected",
        client_weights="averaged",
        share_every=2,
    )
    traffic, clients = assert_adds_up(run(settings, tmp_path / "run"))
    sent = clients["gradient_samples"]
    assert sent.sum() > 0
    assert (traffic["down_gradients"] > 0).tolist() == (sent > 0).tolist()
    assert (traffic["down_gradients"] <= ACTIVATION_BYTES * sent).all()
    part = sum(4 * p.numel() for p in split_model(settings).client.parameters())
    shared = traffic[traffic["up_weights"] > 0]
    assert set(shared["round"]) == {3}
    assert (shared["up_weights"] > part).all()
    assert none_of(shared, "up_activations", "up_labels")
