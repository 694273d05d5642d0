"""Strategies as a run's settings want them; those that zerofl wraps are in test_zerofl_parts."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.common import parameters_to_ndarrays
from flwr.server.strategy import FedAdam, FedAvg, FedProx

from simulations.flower_strategies import flower_strategy
from simulations.settings import RunSettings
from strategies import Alone, FedNova, Scaffold
from tests.simulations.changed_settings import settings_with
from tests.strategies.dense_federation import NAMES, START
from tests.strategies.federation import same_bits

SMALL: dict[str, Any] = {
    "algorithm": "baseline",
    "num-clients": 8,
    "clients-per-round": 3,
    "rounds": 3,
}


def built(strategy: str, **changes: Any) -> Any:
    settings = settings_with(SMALL, strategy=strategy, **changes)
    return flower_strategy(settings, START, run="a-run", array_names=NAMES)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fedavg", FedAvg),
        ("fedprox", FedProx),
        ("fedadam", FedAdam),
        ("scaffold", Scaffold),
        ("fednova", FedNova),
        ("alone", Alone),
    ],
)
def test_each_samples_as_the_settings_say(name: str, kind: Any) -> None:
    strategy: Any = built(name, fraction_evaluate=0.5)
    assert type(strategy) is kind
    assert strategy.num_fit_clients(8) == (3, 8)
    assert strategy.num_evaluation_clients(8) == (4, 8)
    assert same_bits(parameters_to_ndarrays(strategy.initial_parameters), START)


def test_a_baselines_round_is_told_its_number_and_zerofls_has_a_plan_for_that() -> None:
    config = built("fedavg", learning_rate=0.4, learning_rate_end=0.1).on_fit_config_fn(2)
    assert config == {"learning-rate": pytest.approx(0.2), "local-epochs": 1, "round": 2}
    zerofl = RunSettings.from_mapping(SMALL | {"algorithm": "zerofl"})
    plain: Any = flower_strategy(zerofl, START)
    assert "round" not in plain.on_fit_config_fn(2)


def test_own_strategies_get_their_settings() -> None:
    scaffold = built("scaffold")
    assert (scaffold.num_clients, scaffold.server_learning_rate) == (8, 1.0)
    assert (scaffold.rounds.run, scaffold.model.names) == ("a-run", NAMES)
    assert built("scaffold", server_learning_rate=0.5).server_learning_rate == 0.5
    assert built("fednova", momentum=0.9).momentum == 0.9
    assert built("alone").rounds.run == "a-run"
