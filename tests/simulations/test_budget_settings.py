"""Budgets of a run as text: one limit for all clients, or one for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulations.budget_settings import BudgetSettings
from simulations.runner import resume, run
from simulations.settings import RunSettings
from strategies.budget import Budget
from tests.simulations.small_runs import Stopped, stopped_after
from tests.simulations.small_split_runs import SMALL_SPLIT, small_split
from zerofl_flwr.errors import SettingsError

pytestmark = pytest.mark.usefixtures("no_plots")


def test_nothing_limited_is_no_budget() -> None:
    assert BudgetSettings().to_budget() is None


def test_limits_as_text() -> None:
    settings = BudgetSettings(
        bytes_budget=5e7, client_bytes_budget="1e6, none,3", client_multiply_adds_budget="2e9"
    )
    assert settings.to_budget() == Budget(
        bytes=5e7, client_bytes={0: 1e6, 2: 3}, client_multiply_adds=2e9
    )
    assert BudgetSettings(client_bytes_budget="0").to_budget() == Budget(client_bytes=0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bytes_budget": -1.0}, "bytes_budget is -1.0"),
        ({"multiply_adds_budget": 0.5}, "multiply_adds_budget is 0.5"),
        ({"bytes_budget": float("nan")}, "bytes_budget is nan"),
        ({"client_bytes_budget": "5,x"}, "client_bytes_budget is '5,x'.*not 'x'"),
        ({"client_bytes_budget": "5,"}, "not ''"),
        ({"client_bytes_budget": "5,-2"}, "client_bytes_budget is -2.0"),
        ({"client_multiply_adds_budget": "inf"}, "client_multiply_adds_budget is inf"),
    ],
)
def test_what_is_no_limit_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        BudgetSettings(**given)


def test_a_list_has_a_limit_for_each_client() -> None:
    assert small_split(client_bytes_budget=",".join("12345678")).budget.to_budget() is not None
    with pytest.raises(SettingsError, match=r"client_bytes_budget has 2 limits.* 8 clients"):
        small_split(client_bytes_budget="1,2")


def test_a_budget_is_no_setting_of_other_methods() -> None:
    with pytest.raises(SettingsError, match="bytes-budget has no effect with the algorithm zerofl"):
        RunSettings.from_mapping({"algorithm": "zerofl", "bytes-budget": 5.0})
    assert RunSettings.from_mapping(SMALL_SPLIT | {"bytes-budget": 5e7}).to_mapping()[
        "bytes-budget"
    ] == pytest.approx(5e7)


def test_a_run_keeps_within_its_budget(tmp_path: Path) -> None:
    """Activations behind a ReLU travel as CSR here, so that the foretold bytes are a bound."""
    options: dict[str, Any] = {"clients_per_round": 8, "rounds": 5, "kappa": 0.2, "eta": 1.0}
    run(small_split(**options), tmp_path / "free")
    free = pd.read_csv(tmp_path / "free" / "rounds.csv")
    assert free["held_back"].tolist() == [0] * 5
    limit = int(0.6 * (free["uplink_bytes"] + free["downlink_bytes"]).sum())
    own = int(0.7 * free["client_ops"].sum() / 8)
    settings = small_split(
        **options, bytes_budget=limit, client_multiply_adds_budget=",".join(["none", str(own)] * 4)
    )
    run(settings, tmp_path / "kept")
    rounds = pd.read_csv(tmp_path / "kept" / "rounds.csv")
    clients = pd.read_csv(tmp_path / "kept" / "clients.csv")
    left = limit - (rounds["uplink_bytes"] + rounds["downlink_bytes"]).sum()
    assert 0 <= left < clients["uplink_bytes"].max()  # not enough for another upload
    assert rounds["held_back"].sum() > 0
    asked = clients.groupby("partition_id").size().tolist()
    assert asked == [5, 3] * 4  # each round costs a client the same
    assert 'client-multiply-adds-budget = "none,' in (tmp_path / "kept/config.toml").read_text()


def test_a_resumed_run_keeps_within_what_is_left(tmp_path: Path) -> None:
    settings = small_split(clients_per_round=4, eta=1.0, kappa=0.0, bytes_budget=2e6)
    unbroken = run(settings, tmp_path / "unbroken")
    with stopped_after(1), pytest.raises(Stopped):
        run(settings, tmp_path / "resumed")
    resumed = resume(tmp_path / "resumed")
    columns = ["picked", "held_back", "uplink_bytes", "downlink_bytes", "client_ops", "accuracy"]
    one, other = (pd.read_csv(folder / "rounds.csv")[columns] for folder in (unbroken, resumed))
    pd.testing.assert_frame_equal(one, other)
    assert one["held_back"].sum() > 0
    assert one["picked"].sum() > 0
