"""Costs and plans of runs, from their settings, against the tables of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import nn

from simulations import recorder as recorder_module
from simulations.networks import digits_cnn
from simulations.run_costs import run_costs, run_plan, training_sizes
from simulations.runner import run
from simulations.settings import RunSettings
from strategies.planning import RunCosts
from strategies.traffic import CATEGORIES
from tests.simulations.small_runs import SMALL, small
from zerofl_flwr.errors import SettingsError

# A tenth of a client's samples is for its tests: it trains on 45.
RUN: dict[str, Any] = {
    "algorithm": "adasplit",
    "num-clients": 4,
    "samples-per-client": 50,
    "clients-per-round": 4,
    "rounds": 10,
    "batch-size": 16,
    "kappa": 0.5,
    "eta": 0.5,
    "cut": "1",
    "backend": "in-process",
}
TABLES = ("rounds", "traffic")
SL_BASIC: dict[str, Any] = {
    "kappa": 0.0,
    "eta": 0.6,
    "selection": "all",
    "mask": "none",
    "local-loss": False,
    "server-gradient": "selected",
    "client-weights": "relayed",
    "iterations-per-round": 1,
    "share-every": 2,
}


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds."""
    monkeypatch.setattr(recorder_module, "write_plots", lambda folder: [])


def settings_of(**changes: Any) -> RunSettings:
    kebab = {key.replace("_", "-"): value for key, value in changes.items()}
    return RunSettings.from_mapping(RUN | kebab).resolved()


def costs_of(**changes: Any) -> RunCosts:
    return run_costs(settings_of(**changes))


def test_clients_train_in_all_rounds_and_the_server_on_the_picked_ones_of_the_global_phase() -> (
    None
):
    costs = costs_of()
    assert (costs.total.trained, costs.total.learned) == (10 * 4 * 45, 5 * 2 * 45)
    assert costs.is_exact


def test_full_batches_leave_the_rest_of_an_epoch_out() -> None:
    total = costs_of(full_batches=True).total
    assert (total.trained, total.learned) == (10 * 4 * 32, 5 * 2 * 32)


def test_exchanges_of_some_batches_take_their_share_of_an_epoch() -> None:
    # An epoch has batches of 16, 16 and 13: 6 of them are two epochs.
    total = costs_of(iterations_per_round=6).total
    assert (total.trained, total.learned) == (10 * 4 * 90, 5 * 2 * 90)


def test_some_of_the_clients_can_be_drawn() -> None:
    costs = costs_of(clients_per_round=3)
    assert (costs.total.trained, costs.total.learned) == (10 * 3 * 45, 5 * 2 * 45)
    assert not costs.is_exact


def test_relayed_parts_and_finishing_rounds_are_counted() -> None:
    total = costs_of(**SL_BASIC).total
    # Ten rounds are three turns, of two batches of 16 and a round that brings the last gradients,
    # and a batch.
    assert (total.trained, total.returned, total.learned) == (7 * 16, 6 * 16, 7 * 16)
    assert total.up.weights == 4 * total.down.weights // 4 > 0


def assert_as_in(folder: Path, costs: RunCosts) -> None:
    """Hold costs against a run's tables; what has zeros may be less."""
    rounds, traffic = (
        pd.read_csv(folder / f"{name}.csv").sum(numeric_only=True) for name in TABLES
    )
    total = costs.total
    for name in ("client_forward_ops", "client_ops", "server_forward_ops", "server_ops"):
        assert getattr(total, name) == rounds[name]
    for name in ("weights", "labels"):
        assert getattr(total.up, name) == traffic[f"up_{name}"]
    sparse = sum(traffic[f"{way}_indices"] for way in ("up", "down"))
    spent = rounds["uplink_bytes"] + rounds["downlink_bytes"]
    assert spent < total.bytes if sparse else spent == total.bytes
    for name in CATEGORIES if not sparse else ():
        assert getattr(total.down, name) == traffic[f"down_{name}"]


@pytest.mark.parametrize("changes", [{}, SL_BASIC])
def test_an_adasplit_run_costs_what_was_foretold(tmp_path: Path, changes: dict[str, Any]) -> None:
    # Cut behind the convolution, where nothing is zero.
    settings = settings_of(**{"rounds": 4, "model": f"{__name__}:own_network", **changes})
    costs = run_costs(settings)
    assert costs.is_exact
    assert_as_in(run(settings, tmp_path / "run"), costs)


def own_network(num_classes: int, in_channels: int, input_size: tuple[int, int]) -> nn.Module:
    """Build digits_cnn without the ReLU at the cut."""
    network = digits_cnn(num_classes, in_channels, input_size)
    del network[1]
    return network


def test_a_cut_behind_a_relu_costs_less(tmp_path: Path) -> None:
    settings = settings_of(rounds=2)
    assert_as_in(run(settings, tmp_path / "run"), run_costs(settings))


@pytest.mark.parametrize("changes", [{}, {"strategy": "fedprox"}])
def test_a_zerofl_run_costs_what_was_foretold(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = small(sparse_downlink=False, clients_per_round=8, **changes).resolved()
    folder, costs = run(settings, tmp_path / "run"), run_costs(settings)
    rounds = pd.read_csv(folder / "rounds.csv").sum(numeric_only=True)
    assert costs.is_exact
    assert costs.total.uplink_bytes == rounds["uplink_bytes"]
    assert costs.total.downlink_bytes == rounds["downlink_bytes"]
    assert costs.total.client_ops == rounds["client_ops"]


def test_training_sizes_leave_validation_samples_out() -> None:
    assert training_sizes(settings_of()) == [45] * 4


def test_a_baseline_is_refused() -> None:
    with pytest.raises(SettingsError, match="the algorithm is baseline"):
        run_costs(RunSettings.from_mapping({"algorithm": "baseline"}))
    with pytest.raises(SettingsError, match="the algorithm is baseline"):
        run_plan({"algorithm": "baseline"})


def test_a_planned_adasplit_run_stays_within(tmp_path: Path) -> None:
    free = run_plan(RUN)
    assert [c.choice["cut"] for c in free.candidates[::20]][:1] == ["relu1"]
    assert dict(free.chosen.choice) == {"kappa": 0.0, "eta": 1.0, "cut": "relu3"}
    budget = {"bytes-budget": 2_000_000, "multiply-adds-budget": 1e10}
    plan = run_plan({**RUN, "rounds": 4, **budget})
    planned = {**plan.chosen.choice, "rounds": 4}
    rounds = pd.read_csv(run(settings_of(**planned), tmp_path / "run") / "rounds.csv")
    spent = rounds.sum(numeric_only=True)
    assert spent["uplink_bytes"] + spent["downlink_bytes"] <= 2_000_000
    assert spent["client_ops"] + spent["server_ops"] <= 1e10
    assert plan.costs.total.ops == spent["client_ops"] + spent["server_ops"]


def test_a_planned_zerofl_run_stays_within(tmp_path: Path) -> None:
    values = {**SMALL, "rounds": 2, "clients-per-round": 8}
    plan = run_plan({**values, "bytes-budget": 4_000_000, "multiply-adds-budget": 8e8})
    choice = {name.replace("_", "-"): value for name, value in plan.chosen.choice.items()}
    settings = RunSettings.from_mapping({**values, **choice})
    assert settings.zerofl == plan.settings
    spent = pd.read_csv(run(settings, tmp_path / "run") / "rounds.csv").sum(numeric_only=True)
    assert spent["uplink_bytes"] + spent["downlink_bytes"] <= 4_000_000
    assert spent["client_ops"] <= 8e8


def test_limits_of_each_client_are_those_of_a_runs_settings() -> None:
    with pytest.raises(SettingsError, match="has 2 limits; expected one for all clients"):
        run_plan({**RUN, "client-bytes-budget": "1e6,2e6"})
    plan = run_plan({**RUN, "client-bytes-budget": "1e9,4e5,none,1e9"})
    assert plan.budget.client_bytes == {0: 1e9, 1: 4e5, 3: 1e9}
    assert plan.costs.clients[1].bytes <= 4e5
    assert run_plan(RUN).costs.clients[1].bytes > 4e5
