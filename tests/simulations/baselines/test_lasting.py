"""A client of which something lasts is told where to go on from."""

from __future__ import annotations

import pytest

from simulations.baselines.lasting import plan_in
from strategies.client_rounds import StatePlan
from zerofl_flwr.errors import SettingsError


def test_a_message_without_a_plan_is_refused() -> None:
    plan = StatePlan("run", 3, 2)
    assert plan_in({**plan.to_config()}, "Alone") == plan
    with pytest.raises(SettingsError, match="this client needs the strategy Alone at the server"):
        plan_in({"round": 3}, "Alone")
