"""Plans of an exchange and of a test, as they travel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adasplit_flwr.plans import ExchangePlan, TestPlan
from zerofl_flwr.errors import SettingsError

EXCHANGE = ExchangePlan(
    run="first",
    server_round=3,
    state_round=2,
    iterations=63,
    finish=False,
    upload=True,
    upload_weights=False,
    weight_arrays=0,
    gradient_arrays=4,
    learning_rate=1e-3,
    weight_decay=1e-5,
    local_loss=True,
    temperature=0.07,
    activation_penalty=0.0,
    precision="float32",
)
TEST = TestPlan(
    run="first", server_round=3, state_round=2, upload=False, weight_arrays=0, server_arrays=7
)


def test_an_exchange_travels_as_scalars() -> None:
    config = EXCHANGE.to_config()
    assert config["adasplit-server-round"] == 3
    assert config["adasplit-upload"] is True
    assert ExchangePlan.from_config({**config, "other": 1}) == EXCHANGE


def test_a_test_travels_apart_from_an_exchange() -> None:
    config = TEST.to_config()
    assert config["adasplit-test-server-arrays"] == 7
    assert TestPlan.from_config(config) == TEST
    assert ExchangePlan.from_config(config) is None
    assert TestPlan.from_config(EXCHANGE.to_config()) is None


def test_a_part_of_a_plan_is_refused() -> None:
    config = EXCHANGE.to_config()
    del config["adasplit-upload"]
    with pytest.raises(SettingsError, match=r"lacks adasplit-upload$"):
        ExchangePlan.from_config(config)


def test_a_finishing_plan_takes_no_batch() -> None:
    finish = replace(EXCHANGE, iterations=0, finish=True, upload=False, upload_weights=True)
    config = finish.to_config()
    assert config["adasplit-finish"] is True
    assert ExchangePlan.from_config(config) == finish
    message = "the plan of round 3 finishes, which takes no batch and uploads the client part alone"
    for changes in ({"iterations": 1}, {"upload": True}, {"upload_weights": False}):
        with pytest.raises(SettingsError, match=message):
            replace(finish, **changes)
    with pytest.raises(SettingsError, match="iterations 0, upload True and upload_weights True"):
        ExchangePlan.from_config({**config, "adasplit-upload": True})
