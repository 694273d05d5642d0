"""The client that trains by itself: as one that never stopped, with its own optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import RecordDict
from torch import nn

from simulations.baselines import AloneClient, BaselineClient
from tests.simulations.baselines.learners import SAMPLES, arrays, config, loader, network
from tests.strategies.federation import same_bits
from zerofl_flwr.errors import ClientFailedError, DataError, PayloadError, SettingsError
from zerofl_flwr.model_arrays import Array, get_arrays
from zerofl_flwr.training import TrainingSettings, new_optimizer, seed_of, train_locally

SETTINGS = {
    "sgd": TrainingSettings(learning_rate=0.1),
    "momentum": TrainingSettings(learning_rate=0.1, momentum=0.9),
    "adam": TrainingSettings(optimizer="adam", learning_rate=0.01, weight_decay=0.001),
}


def client(state: RecordDict, **options: Any) -> AloneClient:
    given: dict[str, Any] = {"training": SETTINGS["adam"], "partition_id": 3, "seed": 7, **options}
    model = given.pop("model", None) or network(normed=True)
    return AloneClient(model, loader(), loader(1, shuffle=False), state=state, **given)


def start() -> list[Array]:
    return arrays(normed=True)


@pytest.mark.parametrize("lasting", ["memory", "folder"])
@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_are_one_training_that_never_stopped(
    name: str, lasting: str, tmp_path: Path
) -> None:
    settings = SETTINGS[name]
    model = network(normed=True)
    optimizer = new_optimizer(model.parameters(), settings)
    state, folder = RecordDict(), tmp_path if lasting == "folder" else None
    for number in (1, 2, 3):
        train_locally(model, loader(), settings, seed=seed_of(7, number, 3), optimizer=optimizer)
        alone = client(state, training=settings, state_dir=folder)
        reply, samples, metrics = alone.fit(
            start() if number == 1 else [], config(number, number - 1)
        )
        assert (reply, samples, metrics["round"]) == ([], SAMPLES, number)
        assert same_bits(get_arrays(alone.model), get_arrays(model))
    loss, _, metrics = client(state, state_dir=folder).evaluate([], config(3, 3))
    model.eval().requires_grad_(False)
    inputs, labels = next(iter(torch.utils.data.DataLoader(loader(1).dataset, SAMPLES)))  # type: ignore[attr-defined]
    scores = model(inputs)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(scores, labels)))
    right = int((scores.argmax(dim=1) == labels).sum())
    assert metrics["accuracy"] == pytest.approx(right / SAMPLES)


def test_a_round_is_fedavgs_of_a_single_client_under_plain_sgd() -> None:
    plain = BaselineClient(
        network(normed=True), loader(), training=SETTINGS["sgd"], partition_id=3, seed=7
    )
    state, model = RecordDict(), start()
    for number in (1, 2):
        model, _, _ = plain.fit(model, {"round": number})
        alone = client(state, training=SETTINGS["sgd"])
        alone.fit(start() if number == 1 else [], config(number, number - 1))
        assert same_bits(get_arrays(alone.model), model)


def test_the_optimizer_lasts_where_fedavgs_begins_anew() -> None:
    state = RecordDict()
    client(state).fit(start(), config(1))
    lasting = client(state)
    lasting.fit([], config(2, 1))
    model = network(normed=True)
    for number in (1, 2):
        train_locally(model, loader(), SETTINGS["adam"], seed=seed_of(7, number, 3))
    assert not same_bits(get_arrays(lasting.model), get_arrays(model))


def test_the_rounds_learning_rate_counts() -> None:
    state = RecordDict()
    client(state).fit(start(), config(1))
    slow, fast = client(state), client(state)
    slow.fit([], config(2, 1) | {"learning-rate": 1e-9})
    before = get_arrays(slow.model)
    fast.fit([], config(2, 1) | {"learning-rate": 0.1})
    assert abs(get_arrays(fast.model)[0] - before[0]).max() > 0.01


def test_who_has_not_trained_tests_the_common_start() -> None:
    fresh = client(RecordDict())
    loss, _, _ = fresh.evaluate(start(), config(4))
    plain = BaselineClient(network(normed=True), loader(), loader(1), partition_id=3)
    assert loss == pytest.approx(plain.evaluate(start(), {})[0])


def test_a_lost_reply_is_trained_again_from_the_round_before() -> None:
    state = RecordDict()
    client(state).fit(start(), config(1))
    first, again = client(state), client(state)
    first.fit([], config(2, 1))
    result = get_arrays(first.model)
    again.fit([], config(2, 1))
    assert same_bits(get_arrays(again.model), result)


def test_what_cannot_be_gone_on_from_is_refused(tmp_path: Path) -> None:
    state = RecordDict()
    with pytest.raises(
        ClientFailedError, match="client 3 of run run: the state of round 1 is lost"
    ):
        client(state).fit([], config(2, 1))
    with pytest.raises(PayloadError, match="expected 9 arrays for this model, got 0"):
        client(state).fit([], config(1))
    client(state, state_dir=tmp_path).fit(start(), config(1))
    with pytest.raises(PayloadError, match="9 arrays came for a client with a network of its own"):
        client(state, state_dir=tmp_path).fit(start(), config(2, 1))
    with pytest.raises(SettingsError, match="needs the strategy Alone at the server"):
        client(state).evaluate(start(), {})
    other = client(state, model=network(), state_dir=tmp_path)
    with pytest.raises(DataError, match="client 3 kept another network than this"):
        other.fit([], config(2, 1))
