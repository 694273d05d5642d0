"""Costs and plans of runs, from their settings, against the tables of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import nn

from simulations.networks import digits_cnn
from simulations.run_costs import run_costs, run_plan, training_sizes
from simulations.runner import run
from simulations.settings import RunSettings
from strategies.planning import RunCosts
from strategies.traffic import CATEGORIES
from tests.simulations.changed_settings import settings_with
from tests.simulations.planned_runs import PLANNED_SPLIT
from tests.simulations.small_runs import SMALL, small
from zerofl_flwr.errors import SettingsError

pytestmark = pytest.mark.usefixtures("no_plots")

OPS = ("client_forward_ops", "client_ops", "server_forward_ops", "server_ops")
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


def settings_of(**changes: Any) -> RunSettings:
    return settings_with(PLANNED_SPLIT, **changes).resolved()


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
    # The part travels with its head, down to four clients and up from them: a convolution of 3 x 3
    # with 16 kernels; one of 1 x 1 with 128, and a layer of 64; all with biases, of 4 bytes.
    part = 4 * ((9 * 16 + 16) + (16 * 128 + 128) + (128 * 64 + 64))
    assert (total.down.weights, total.up.weights) == (4 * part, 4 * part)


def measured(folder: Path) -> dict[str, int]:
    """Add up a run's tables: multiply-adds, bytes both ways, and what they are."""
    rounds, traffic = (
        pd.read_csv(folder / f"{name}.csv").sum(numeric_only=True) for name in ("rounds", "traffic")
    )
    parts = [f"{way}_{name}" for way in ("up", "down") for name in CATEGORIES]
    spent = rounds[[*OPS, "uplink_bytes", "downlink_bytes"]].to_dict() | traffic[parts].to_dict()
    return {str(name): int(value) for name, value in spent.items()}


def foretold(costs: RunCosts) -> dict[str, int]:
    """Return the same of what a run would cost."""
    total = costs.total
    return {
        **{name: getattr(total, name) for name in (*OPS, "uplink_bytes", "downlink_bytes")},
        **{f"up_{name}": size for name, size in total.up.by_category().items()},
        **{f"down_{name}": size for name, size in total.down.by_category().items()},
    }


@pytest.mark.parametrize("changes", [{}, SL_BASIC])
def test_an_adasplit_run_costs_what_was_foretold(tmp_path: Path, changes: dict[str, Any]) -> None:
    # Cut behind the convolution, where nothing is zero.
    settings = settings_of(**{"rounds": 4, "model": f"{__name__}:own_network", **changes})
    costs = run_costs(settings)
    assert costs.is_exact
    assert costs.total.up.indices == costs.total.down.indices == 0
    assert measured(run(settings, tmp_path / "run")) == foretold(costs)


def own_network(num_classes: int, in_channels: int, input_size: tuple[int, int]) -> nn.Module:
    """Build digits_cnn without the ReLU at the cut."""
    network = digits_cnn(num_classes, in_channels, input_size)
    del network[1]
    return network


def test_a_cut_behind_a_relu_costs_less(tmp_path: Path) -> None:
    settings = settings_of(rounds=2)
    spent, most = measured(run(settings, tmp_path / "run")), foretold(run_costs(settings))
    # Activations with zeros go up as CSR, where the zeros are left out; the rest stays as it was.
    changed = {"up_activations", "up_indices", "up_protocol", "uplink_bytes"}
    assert {name for name in spent if spent[name] != most[name]} == changed
    assert spent["up_indices"] > most["up_indices"] == 0
    assert spent["uplink_bytes"] < most["uplink_bytes"]


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
    free = run_plan(PLANNED_SPLIT)
    cuts = [candidate.choice["cut"] for candidate in free.candidates]
    assert cuts == ["relu1"] * 40 + ["pool1"] * 40 + ["relu3"] * 40
    assert dict(free.chosen.choice) == {"kappa": 0.0, "eta": 1.0, "cut": "relu3"}
    budget = {"bytes-budget": 2_000_000, "multiply-adds-budget": 1e10}
    plan = run_plan({**PLANNED_SPLIT, "rounds": 4, **budget})
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
        run_plan({**PLANNED_SPLIT, "client-bytes-budget": "1e6,2e6"})
    plan = run_plan({**PLANNED_SPLIT, "client-bytes-budget": "1e9,4e5,none,1e9"})
    assert plan.budget.client_bytes == {0: 1e9, 1: 4e5, 3: 1e9}
    assert plan.costs.clients[1].bytes <= 4e5
    assert run_plan(PLANNED_SPLIT).costs.clients[1].bytes > 4e5
