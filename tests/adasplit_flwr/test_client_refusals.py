"""Training messages that AdaSplit's client refuses, and why."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from flwr.common import Scalar

from adasplit_flwr.gradient_payload import encode_gradients
from adasplit_flwr.weights_payload import encode_weights, named_arrays
from tests.adasplit_flwr.small_clients import (
    ACTIVATION,
    CLASSES,
    NEXT,
    PLAN,
    TEST,
    Arrays,
    bits,
    client_of,
    evaluated,
    fit,
    play,
    small_split,
    start_weights,
    state_in,
)
from zerofl_flwr.errors import ClientFailedError, PayloadError, SettingsError


def test_without_a_plan_the_strategy_is_named() -> None:
    client = client_of(3, RecordDict())
    message = "holds no plan of AdaSplit: this client needs the strategy AdaSplit at the server"
    with pytest.raises(SettingsError, match=message):
        client.fit(start_weights(), {"learning-rate": 0.1})
    with pytest.raises(SettingsError, match=message):
        client.evaluate([], {**PLAN.to_config()})
    config: dict[str, Scalar] = {**PLAN.to_config()}
    del config["adasplit-upload"]
    with pytest.raises(SettingsError, match="the round's config lacks adasplit-upload"):
        client.fit(start_weights(), config)


def wrong_nan() -> Arrays:
    split = small_split()
    split.client.get_parameter("0.bias").data[2] = math.nan
    return start_weights(split)


def wrong_cut() -> Arrays:
    split = small_split()
    parts = {"client": split.client[:1], "head": split.head}  # type: ignore[index]
    return encode_weights(named_arrays(parts), server_round=1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "server, field arrays: a client that has no state yet needs weights to start from"),
        (start_weights(server_round=2), "server, field round: round 1 expected, 2 came"),
        (wrong_cut(), r"server, layer client\.1\.weight, field name: .*cut elsewhere"),
        (wrong_nan(), r"server, layer client\.0\.bias, field data: 1 values are not finite"),
        ([np.zeros(3)], "server, field header"),
    ],
    ids=["none", "round", "cut", "NaN", "no payload"],
)
def test_weights_that_do_not_fit_are_refused(weights: Arrays, message: str) -> None:
    state = RecordDict()
    with pytest.raises(PayloadError, match=message):
        fit(client_of(3, state), PLAN, weights)
    assert not state


@pytest.mark.parametrize("changes", [{"weight_arrays": 3}, {"gradient_arrays": 1}])
def test_another_number_of_arrays_is_refused(changes: dict[str, int]) -> None:
    weights = start_weights()
    plan = dataclasses.replace(PLAN, weight_arrays=len(weights))
    config: dict[str, Scalar] = {**dataclasses.replace(plan, **changes).to_config()}  # type: ignore[arg-type]
    message = r"server, field arrays: the plan announces \d+ \+ \d arrays, 11 came"
    with pytest.raises(PayloadError, match=message):
        client_of(3, RecordDict()).fit(weights, config)
    test = dataclasses.replace(TEST, weight_arrays=-1, server_arrays=12)
    with pytest.raises(PayloadError, match=r"the plan announces -1 \+ 12 arrays, 11 came"):
        client_of(3, RecordDict()).evaluate(weights, {**test.to_config()})


def test_a_round_that_is_over_is_refused() -> None:
    state = RecordDict()
    play(state)
    message = "server, field round: a message of round 2 came for a client whose state is that of"
    with pytest.raises(PayloadError, match=message):
        fit(client_of(3, state), dataclasses.replace(PLAN, server_round=2, state_round=2))
    with pytest.raises(PayloadError, match=r"a message of round 1 came .* of round 2"):
        evaluated(client_of(3, state), dataclasses.replace(TEST, server_round=1))


def test_gradients_without_an_upload_are_refused() -> None:
    state = RecordDict()
    fit(client_of(3, state), dataclasses.replace(PLAN, upload=False), start_weights())
    gradients = encode_gradients([(0, np.zeros((4, *ACTIVATION), np.float32))], server_round=2)
    plan = dataclasses.replace(PLAN, server_round=2, state_round=1)
    with pytest.raises(PayloadError, match="this client uploaded no activations in its last"):
        fit(client_of(3, state), plan, gradients=gradients)


def test_gradients_that_come_with_weights_are_refused() -> None:
    state = RecordDict()
    play(state)
    before = bits(state_in(state).arrays)
    gradients = encode_gradients(
        [(n, np.zeros((4, *ACTIVATION), np.float32)) for n in range(2)], server_round=3
    )
    message = "server, field arrays: gradients came together with weights, which they were not com"
    with pytest.raises(PayloadError, match=message):
        fit(client_of(3, state), NEXT, start_weights(server_round=3), gradients)
    assert bits(state_in(state).arrays) == before
    assert fit(client_of(3, state), NEXT, gradients=gradients)[1] == 4 + 2  # an epoch ends


FINISH = dataclasses.replace(NEXT, finish=True, iterations=0, upload=False)


def test_gradients_that_a_finishing_message_brought_are_not_taken_again() -> None:
    state = RecordDict()
    play(state)
    gradients = [(n, np.ones((4, *ACTIVATION), np.float32)) for n in range(2)]
    fit(client_of(3, state), FINISH, gradients=encode_gradients(gradients, server_round=3))
    again = dataclasses.replace(FINISH, server_round=4, state_round=3)
    with pytest.raises(PayloadError, match="this client uploaded no activations in its last"):
        fit(client_of(3, state), again, gradients=encode_gradients(gradients, server_round=4))


def test_a_client_without_a_state_cannot_finish() -> None:
    fresh = dataclasses.replace(FINISH, state_round=0)
    with pytest.raises(PayloadError, match="a client that has no state yet needs weights"):
        fit(client_of(3, RecordDict()), fresh)


def test_no_training_data_is_an_error() -> None:
    with pytest.raises(ClientFailedError, match="there is no training data"):
        fit(client_of(3, RecordDict(), train_batches=[]), PLAN, start_weights())


def test_labels_that_are_no_classes_are_refused() -> None:
    inputs = torch.zeros(4, 1, 4, 4)
    client = client_of(3, RecordDict(), train_batches=[(inputs, torch.full((4,), CLASSES))])
    with pytest.raises(PayloadError, match=r"client, layer labels.*class 3 came; there are 3 cl"):
        fit(client, PLAN, start_weights())
    more = client_of(
        3, RecordDict(), train_batches=[(inputs, torch.full((4,), CLASSES))], num_classes=9
    )
    assert fit(more, PLAN, start_weights())[1] == 8
