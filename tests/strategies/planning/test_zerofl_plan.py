"""Plans of ZeroFL: the grid, the objective, refusals."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest

from strategies.planning import Plan, RunCosts, ZeroFLCosts, plan_zerofl
from tests.strategies.planning.zerofl_network import EQUAL, SHAPE, network
from zerofl_flwr import ZeroFLSettings, recommended_settings
from zerofl_flwr.errors import SettingsError

SPARSITIES, RATIOS, ROUNDS = (0.0, 0.5, 0.9), (0.0, 0.1, 0.2), 6


def planned(**options: Any) -> Plan[ZeroFLSettings]:
    given = {"sparsities": SPARSITIES, "mask_ratios": RATIOS, **options}
    return plan_zerofl(network(), EQUAL, sample_shape=SHAPE, rounds=ROUNDS, **given)


@cache
def prices() -> dict[tuple[float, float], RunCosts]:
    costs = ZeroFLCosts(network(), EQUAL, sample_shape=SHAPE)
    return {
        (sparsity, ratio): costs.of(ZeroFLSettings(sparsity=sparsity, mask_ratio=ratio), ROUNDS)
        for sparsity, ratio in itertools.product(SPARSITIES, (*RATIOS, 0.5, 0.9))
        if ratio < min(sparsity, 0.5) or ratio == sparsity
    }


def best_of_all(bytes_budget: float, flops_budget: float) -> tuple[float, float] | None:
    """Look for the pair that uploads most, then trains the least sparse, and stays within."""
    best, found = (-1, 0.0), None
    for (sparsity, ratio), priced in prices().items():
        if priced.total.bytes > bytes_budget or priced.total.client_ops > flops_budget:
            continue
        if (priced.weights_up, -sparsity) > best:
            best, found = (priced.weights_up, -sparsity), (sparsity, ratio)
    return found


def test_the_grid_has_every_mask_ratio_below_the_sparsity_and_the_sparsity_itself() -> None:
    assert [tuple(candidate.choice.values()) for candidate in planned().candidates] == [
        (0.0, 0.0),
        *((0.5, ratio) for ratio in (0.0, 0.1, 0.2, 0.5)),
        *((0.9, ratio) for ratio in (0.0, 0.1, 0.2, 0.9)),
    ]


def test_plans_are_the_best_of_the_grid() -> None:
    costs = [priced.total for priced in prices().values()]
    generator = np.random.default_rng(5)
    most_bytes, most_ops = (max(one.bytes for one in costs), max(one.ops for one in costs))
    found = set()
    for _ in range(20):
        limits = [
            int(generator.uniform(0.6, 1.02) * most_bytes),
            int(generator.uniform(0.2, 1.02) * most_ops),
        ]
        expected = best_of_all(*limits)
        if expected is None:
            with pytest.raises(SettingsError, match="none of 9 candidates fits"):
                planned(bytes_budget=limits[0], flops_budget=limits[1])
            continue
        plan = planned(bytes_budget=limits[0], flops_budget=limits[1])
        assert (plan.settings.sparsity, plan.settings.mask_ratio) == expected
        assert plan.costs.total.bytes <= limits[0]
        assert plan.costs.total.ops <= limits[1]
        found.add(expected)
    assert len(found) > 3


def test_without_limits_everything_is_dense() -> None:
    assert dict(planned().chosen.choice) == {"sparsity": 0.0, "mask_ratio": 0.0}


def test_settings_may_depend_on_the_sparsity() -> None:
    def settings_with(sparsity: float, ratio: float) -> ZeroFLSettings:
        return recommended_settings(ROUNDS, sparsity=sparsity, mask_ratio=ratio)

    plan = planned(settings=settings_with)
    by_choice = {tuple(c.choice.values()): c.settings for c in plan.candidates}
    assert by_choice[(0.9, 0.1)].sparsity_schedule == "cubic"
    assert by_choice[(0.0, 0.0)].sparsity_schedule == "constant"


def test_other_settings_stay_as_given() -> None:
    plan = planned(settings=ZeroFLSettings(rule="top-k-diff", sparse_downlink=False))
    assert {candidate.settings.rule for candidate in plan.candidates} == {"top-k-diff"}


def test_the_table_tells_what_goes_up() -> None:
    table = planned().table()
    assert table["weights_up"].max() == table[table["chosen"]]["weights_up"].iloc[0]
    assert "least_learned" not in table
    assert (table["server_multiply_adds"] == 0).all()


def test_a_client_can_be_the_limit() -> None:
    free = planned()
    plan = planned(client_flops_budget={1: free.costs.clients[1].client_ops - 1})
    assert plan.settings.sparsity == 0.5
    with pytest.raises(SettingsError, match="names client 3"):
        planned(client_bytes_budget={3: 1})
