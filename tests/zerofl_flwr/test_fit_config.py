"""What a config says of a round's training."""

from __future__ import annotations

from typing import Any

import pytest

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.fit_config import number_in, training_in
from zerofl_flwr.training import TrainingSettings

OWN = TrainingSettings(optimizer="adam", learning_rate=0.5, local_epochs=2, batch_size=8)


def test_a_round_may_have_its_own_learning_rate_and_epochs() -> None:
    assert training_in({}, OWN) == OWN
    assert training_in({"other": 1}, OWN) == OWN
    told = training_in({"learning-rate": 1, "local-epochs": 5}, OWN)
    assert told == TrainingSettings(
        optimizer="adam", learning_rate=1.0, local_epochs=5, batch_size=8
    )
    assert type(told.learning_rate) is float


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"learning-rate": "0.1"}, "config entry learning-rate is '0.1'; expected a number from 0"),
        ({"learning-rate": True}, "config entry learning-rate is True; expected a number from 0"),
        ({"learning-rate": -0.5}, "config entry learning-rate is -0.5; expected a number from 0"),
        ({"learning-rate": 0}, "learning_rate is 0.0; it must be a positive number"),
        ({"local-epochs": 1.5}, "local_epochs is 1.5; it must be a whole number from 1"),
    ],
)
def test_what_cannot_train_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        training_in(config, OWN)
    assert str(caught.value) == message


def test_a_number_has_a_default() -> None:
    assert number_in({}, "proximal_mu", 0.25) == 0.25
    assert number_in({"proximal_mu": 3}, "proximal_mu", 0.25) == 3.0
    with pytest.raises(SettingsError, match="config entry proximal_mu is nan; expected a number"):
        number_in({"proximal_mu": float("nan")}, "proximal_mu", 0.25)
