"""The client of plain averaging, against ZeroFL's and against torch by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

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


def test_shuffles_depend_on_seed_round_and_partition() -> None:
    first, _, _ = client().fit(arrays(), {"round": 1})
    assert same_bits(first, client().fit(arrays(), {"round": 1})[0])
    for other in (
        client().fit(arrays(), {"round": 2})[0],
        client(seed=8).fit(arrays(), {"round": 1})[0],
        client(partition_id=4).fit(arrays(), {"round": 1})[0],
    ):
        assert not same_bits(first, other)


def test_without_a_round_shuffles_do_not_repeat() -> None:
    plain = client()
    trained, _, metrics = plain.fit(arrays(), {})
    assert "round" not in metrics
    assert not same_bits(trained, plain.fit(arrays(), {})[0])


def test_a_rounds_config_overrides_the_settings() -> None:
    told = client().fit(arrays(), {"round": 1, "learning-rate": 0.05, "local-epochs": 1})
    assert told[2]["local_steps"] == 3
    own = TrainingSettings(learning_rate=0.05, momentum=0.5)
    assert same_bits(told[0], client(training=own).fit(arrays(), {"round": 1})[0])


def test_fedproxs_weight_pulls_back() -> None:
    def distance(mu: float) -> float:
        trained, _, _ = client().fit(arrays(), {"round": 1, "proximal_mu": mu})
        return float(sum(np.abs(a - b).sum() for a, b in zip(trained, arrays(), strict=True)))

    assert distance(1.0) < distance(0.1) < distance(0.0)


def test_adam_is_fresh_in_each_round() -> None:
    adam = client(training=TrainingSettings(optimizer="adam", learning_rate=0.01))
    first, _, _ = adam.fit(arrays(), {"round": 1})
    assert same_bits(first, adam.fit(arrays(), {"round": 1})[0])


def test_the_model_is_tested_on_the_validation_data() -> None:
    model = network().requires_grad_(False)
    tester = client()
    loss, count, metrics = tester.evaluate(arrays(), {})
    inputs, labels = next(iter(torch.utils.data.DataLoader(loader(1).dataset, SAMPLES)))  # type: ignore[attr-defined]
    outputs = model(inputs)
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, labels)))
    assert metrics == {"accuracy": float((outputs.argmax(1) == labels).float().mean())}
    assert count == SAMPLES
    without = BaselineClient(network(), loader(), partition_id=0)
    with pytest.raises(SettingsError, match="was given no validation data"):
        without.evaluate(arrays(), {})


def test_it_tells_who_it_is_and_its_model() -> None:
    assert client().get_properties({}) == {"partition-id": 3}
    assert same_bits(client().get_parameters({}), arrays())


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match="device 'cuda' was asked for, but torch finds no CUDA"):
        client(device="cuda")
