"""The client of plain averaging, against ZeroFL's and against torch by hand."""

from __future__ import annotations

from typing import Any

import pytest

from simulations.baselines import BaselineClient
from tests.simulations.baselines.learners import SAMPLES, arrays, loader, network
from tests.strategies.federation import same_bits
from zerofl_flwr import RoundPlan, TrainingSettings, ZeroFLClient, ZeroFLSettings
from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.payload import decode

TRAINING = TrainingSettings(learning_rate=0.2, momentum=0.5, local_epochs=2)


def client(**options: Any) -> BaselineClient:
    given = {"training": TRAINING, "partition_id": 3, "seed": 7, **options}
    return BaselineClient(network(), loader(), loader(1, shuffle=False), **given)


def test_a_round_is_zerofls_without_sparsity_bit_for_bit() -> None:
    zerofl = ZeroFLClient(network(), loader(), training=TRAINING, partition_id=3, seed=7)
    plan: RoundPlan = ZeroFLSettings(sparsity=0.0, mask_ratio=0.0).plan(5)
    payload, samples, _ = zerofl.fit(arrays(), {**plan.to_config()})
    expected = [entry.data for entry in decode(payload, None, sender="client").entries]
    trained, count, metrics = client().fit(arrays(), {"round": 5})
    assert same_bits(trained, expected)  # type: ignore[arg-type]
    assert not same_bits(trained, arrays())
    assert count == samples == SAMPLES
    assert metrics.keys() == {
        *("train_loss", "train_seconds", "client_memory_mb", "local_steps", "round")
    }
    assert (metrics["local_steps"], metrics["round"]) == (6, 5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"round": "1"}, "config entry round is '1'; expected an int"),
        ({"round": 1, "learning-rate": -1.0}, "config entry learning-rate is -1.0; expected a num"),
        ({"round": 1, "proximal_mu": "x"}, "config entry proximal_mu is 'x'; expected a number"),
        ({"round": 1, "momentum": 0.9}, "the server reckons with sgd and momentum 0.9, but this c"),
    ],
)
def test_a_config_that_cannot_be_is_refused(config: Any, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        client().fit(arrays(), config)
    assert str(caught.value).startswith(message)


def test_fednovas_momentum_must_be_the_clients() -> None:
    assert client().fit(arrays(), {"round": 1, "momentum": 0.5})[2]["local_steps"] == 6
    adam = client(training=TrainingSettings(optimizer="adam"))
    with pytest.raises(SettingsError, match="but this client trains with adam and momentum 0"):
        adam.fit(arrays(), {"round": 1, "momentum": 0.0})


def test_another_model_is_refused() -> None:
    with pytest.raises(PayloadError, match="expected 4 arrays for this model, got 3"):
        client().fit(arrays()[:3], {"round": 1})
