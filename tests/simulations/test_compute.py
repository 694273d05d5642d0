"""A run's multiply-adds: samples times costs that are counted by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulations.compute import NO_COMPUTE, ComputeMeter, summed
from simulations.runner import run
from simulations.settings import RunSettings
from strategies import AdaSplitRoundReport, BaselineRoundReport, ClientReport, RoundReport
from strategies.adasplit_report import AdaSplitClientReport
from tests.simulations.changed_settings import settings_with
from tests.simulations.small_runs import small
from tests.simulations.small_split_runs import small_split

pytestmark = pytest.mark.usefixtures("no_plots")

# digits_cnn on 8 x 8 pixels: two convolutions of 3 x 3 with 16 and 32 kernels, then 512-64-10.
FIRST, SECOND, THIRD, LAST = 64 * 9 * 16, 64 * 9 * 16 * 32, 512 * 64, 640
FORWARD = FIRST + SECOND + THIRD + LAST
STEP = 3 * FORWARD - FIRST  # the pixels need no gradient
BASELINE: dict[str, Any] = {
    "algorithm": "baseline",
    "num-clients": 6,
    "clients-per-round": 3,
    "rounds": 2,
    "samples-per-client": 60,
    "validation-fraction": 0.2,
    "backend": "in-process",
}
CLIENTS = [
    ClientReport(0, 10, 0, 0, 1.0, 1.0),
    ClientReport(1, 5, 0, 0, 1.0, 1.0),
    ClientReport(2, 0, 0, 0, math.nan, math.nan, "client 2: ill"),
]


def baseline(**changes: Any) -> RunSettings:
    return settings_with(BASELINE, **changes)


def test_a_baselines_clients_train_the_whole_network_every_epoch() -> None:
    meter = ComputeMeter(baseline(local_epochs=2, model="digits_cnn"))
    assert summed(meter.of_clients(BaselineRoundReport(1, CLIENTS))) == {
        "client_forward_ops": 30 * FORWARD,
        "client_ops": 30 * STEP,
        "server_forward_ops": 0,
        "server_ops": 0,
    }
    assert summed(meter.of_clients(BaselineRoundReport(1, CLIENTS[2:]))) == NO_COMPUTE


def test_each_client_has_its_own_share_and_a_failed_one_none() -> None:
    meter = ComputeMeter(baseline(model="digits_cnn"))
    clients = meter.of_clients(BaselineRoundReport(1, CLIENTS))
    assert [client["client_ops"] for client in clients] == [10 * STEP, 5 * STEP, 0]
    assert [client["client_forward_ops"] for client in clients] == [10 * FORWARD, 5 * FORWARD, 0]


def test_zerofls_masked_layers_count_by_their_non_zeros() -> None:
    settings = small(sparsity=0.75, sparsity_schedule="constant", activation_sparsity=0.5)
    row = summed(
        ComputeMeter(settings).of_clients(RoundReport(settings.zerofl.plan(1), CLIENTS, []))
    )
    # The first and the last layer are dense by default; three quarters of the others are zero.
    dense, masked = FIRST + LAST, SECOND + THIRD
    forward = dense + masked // 4
    assert row["client_forward_ops"] == 15 * forward
    assert row["client_ops"] == 15 * (forward + FIRST + 2 * LAST + masked // 4 + masked // 2)
    assert (row["server_forward_ops"], row["server_ops"]) == (0, 0)


def test_zerofl_without_sparsity_counts_as_the_dense_network() -> None:
    settings = small(sparsity=0.9, sparsity_schedule="constant")
    plan = small(sparsity=0.0, sparsity_schedule="constant").zerofl.plan(1)
    row = summed(ComputeMeter(settings).of_clients(RoundReport(plan, CLIENTS, [])))
    assert (row["client_forward_ops"], row["client_ops"]) == (15 * FORWARD, 15 * STEP)


LENET: dict[str, Any] = {
    "model": "lenet",
    "cut": "block1",
    "num_clients": 2,
    "clients_per_round": 2,
}
# On 8 x 8 pixels of one channel: 64 places of 5 * 5 * 20, which are pooled to 16; there the head's
# convolution takes 20 * 128, and the server's second block 5 * 5 * 20 * 50, pooled to 4.
CLIENT = 64 * 25 * 20
HEAD = 16 * 20 * 128 + 128 * 64
SERVER = 16 * 25 * 20 * 50 + 4 * 50 * 800 + 800 * 500 + 500 * 10


def split_report() -> AdaSplitRoundReport:
    told = [
        AdaSplitClientReport(0, 8, 0, 0, 1.0, 1.0, "", True, server_samples=6, gradient_samples=4),
        # What the server could not learn from was computed at the client all the same.
        AdaSplitClientReport(1, 2, 0, 0, 1.0, 1.0, "client 1: nan", True, server_samples=1),
    ]
    return AdaSplitRoundReport(1, "global", told, 1.0, 1.0)


def test_adasplits_clients_run_again_what_gradients_come_for() -> None:
    settings = small_split(**LENET, local_loss=False, server_gradient="selected", kappa=0.0)
    assert summed(ComputeMeter(settings).of_clients(split_report())) == {
        "client_forward_ops": (10 + 4) * CLIENT,
        "client_ops": (10 + 2 * 4) * CLIENT,
        "server_forward_ops": 7 * SERVER,
        "server_ops": 7 * 3 * SERVER,
    }


def test_adasplits_clients_train_part_and_head_with_a_loss_of_their_own() -> None:
    row = summed(ComputeMeter(small_split(**LENET)).of_clients(split_report()))
    assert row["client_forward_ops"] == 10 * (CLIENT + HEAD) + 4 * CLIENT
    assert row["client_ops"] == 10 * (2 * CLIENT + 3 * HEAD) + 2 * 4 * CLIENT
    # Where clients get no gradients, the server computes none of its input.
    assert row["server_forward_ops"] == 7 * SERVER
    assert row["server_ops"] == 7 * (3 * SERVER - 16 * 25 * 20 * 50)


def sums_of(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    rounds, clients = (pd.read_csv(folder / f"{name}.csv") for name in ("rounds", "clients"))
    return rounds, clients.groupby("round").sum(numeric_only=True)


def test_a_baseline_runs_rounds_are_its_samples_times_the_costs(tmp_path: Path) -> None:
    folder = run(baseline(model="digits_cnn", local_epochs=2), tmp_path / "run")
    rounds, clients = sums_of(folder)
    samples = 2 * clients["num_examples"]
    assert samples.min() > 0
    assert rounds["client_forward_ops"].tolist() == (samples * FORWARD).tolist()
    assert rounds["client_ops"].tolist() == (samples * STEP).tolist()
    assert rounds["server_ops"].tolist() == [0, 0]


def test_a_zerofl_runs_rounds_get_cheaper_as_it_gets_sparser(tmp_path: Path) -> None:
    folder = run(small(sparsity=0.75, sparsity_start=0.5), tmp_path / "run")
    rounds, clients = sums_of(folder)
    # Before the first round nobody trains.
    assert rounds["client_ops"].tolist()[0] == rounds["client_forward_ops"].tolist()[0] == 0
    assert rounds["sparsity"].tolist()[1:] == [0.71875, 0.75, 0.75]
    # Of conv2's 4608 weights, each at 64 places, and of fc1's 32768 this many are kept. For the
    # weights' gradients as large a share of the activations is.
    kept = np.array([64 * 1296 + 9216, 64 * 1152 + 8192, 64 * 1152 + 8192])
    active = (SECOND + THIRD) * np.array([0.28125, 0.25, 0.25])
    samples = clients["num_examples"].to_numpy()
    forward = samples * (FIRST + LAST + kept)
    assert rounds["client_forward_ops"].tolist()[1:] == forward.tolist()
    total = samples * (2 * FIRST + 3 * LAST + 2 * kept + active)
    assert rounds["client_ops"].tolist()[1:] == total.tolist()


def split_learning(**changes: Any) -> RunSettings:
    options: dict[str, Any] = {
        "num_clients": 3,
        "clients_per_round": 3,
        "rounds": 3,
        "evaluate_every": 3,
    }
    options |= {"iterations_per_round": 1, "kappa": 0.0, "selection": "all", "eta": 0.6}
    options |= {"mask": "none", "local_loss": False, "server_gradient": "selected"}
    return small_split(**LENET | options | changes)


def assert_samples_times_costs(rounds: pd.DataFrame, clients: pd.DataFrame) -> None:
    trained, learned = clients["num_examples"], clients["server_samples"]
    again = clients["gradient_samples"]
    assert rounds["client_forward_ops"].tolist() == ((trained + again) * CLIENT).tolist()
    assert rounds["client_ops"].tolist() == ((trained + 2 * again) * CLIENT).tolist()
    assert rounds["server_forward_ops"].tolist() == (learned * SERVER).tolist()
    assert rounds["server_ops"].tolist() == (learned * 3 * SERVER).tolist()


def test_a_split_runs_rounds_are_its_samples_times_the_costs(tmp_path: Path) -> None:
    rounds, clients = sums_of(run(split_learning(), tmp_path / "run"))
    samples = clients["num_examples"].tolist()
    assert samples == [3 * 16] * 3
    assert clients["server_samples"].tolist() == samples
    assert clients["gradient_samples"].tolist() == [0, 48, 48]  # a round after their upload
    assert_samples_times_costs(rounds, clients)


def test_a_round_that_only_brings_gradients_counts_them(tmp_path: Path) -> None:
    settings = split_learning(client_weights="averaged", share_every=2)
    rounds, clients = sums_of(run(settings, tmp_path / "run"))
    assert rounds["phase"].tolist() == ["global", "global", "finish"]
    assert clients["num_examples"].tolist() == [48, 48, 0]
    assert clients["server_samples"].tolist() == [48, 48, 0]
    assert clients["gradient_samples"].tolist() == [0, 48, 48]
    assert_samples_times_costs(rounds, clients)


def test_what_nobody_learns_from_costs_the_server_nothing(tmp_path: Path) -> None:
    settings = small_split(**LENET, rounds=2, iterations_per_round=1, kappa=0.5, eta=1.0)
    rounds, clients = sums_of(run(settings, tmp_path / "run"))
    assert rounds["phase"].tolist() == ["local", "global"]
    assert clients["server_samples"].tolist() == [0, 32]
    assert rounds["server_forward_ops"].tolist() == [0, 32 * SERVER]
    assert rounds["client_forward_ops"].tolist() == [32 * (CLIENT + HEAD)] * 2
