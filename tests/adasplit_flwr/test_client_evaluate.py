"""AdaSplit's client tests its whole network, or uploads test activations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn
from torch.nn import functional

from adasplit_flwr.weights_payload import encode_server_part
from tests.adasplit_flwr.small_clients import (
    SERVER,
    TEST,
    bits,
    client_of,
    data_of,
    evaluated,
    play,
    small_split,
    start_weights,
    state_in,
    uploaded_test,
)
from zerofl_flwr.errors import ClientFailedError, PayloadError, SettingsError


def test_a_test_at_the_client_is_that_of_the_whole_network_and_changes_no_state() -> None:
    state = RecordDict()
    play(state)
    before = bits(dict(state_in(state).to_arrays()))
    loss, samples, metrics = evaluated(client_of(3, state))
    network = small_split().eval()
    client_part = {
        name.removeprefix("weights/client."): torch.tensor(array)
        for name, array in state_in(state).arrays.items()
        if name.startswith("weights/client.")
    }
    network.client.load_state_dict(client_part)
    inputs, labels = data_of(103).tensors
    logits = SERVER(network.client(inputs)).detach()
    assert samples == 22
    assert loss == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-5)
    assert metrics == {
        "accuracy": pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    }
    assert bits(dict(state_in(state).to_arrays())) == before


def test_uploaded_test_activations_give_the_numbers_of_the_test_at_the_client() -> None:
    state = RecordDict()
    play(state)
    loss, samples, metrics = evaluated(client_of(3, state))
    batches = uploaded_test(evaluated(client_of(3, state), upload=True))
    server = small_split(21).server.eval()
    loss_sum, correct = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            logits = server(torch.tensor(batch.activations))
            labels = torch.tensor(batch.labels)
            loss_sum += float(functional.cross_entropy(logits, labels)) * len(labels)
            correct += int((logits.argmax(dim=1) == labels).sum())
    assert (loss_sum / samples, {"accuracy": correct / samples}) == (loss, metrics)


def test_a_test_of_weights_that_come_needs_no_state_and_changes_none() -> None:
    plan = dataclasses.replace(TEST, server_round=0, state_round=0)
    weights = start_weights(server_round=0)
    state, shared = RecordDict(), small_split(99)
    play(RecordDict(), split=shared)
    batches = uploaded_test(
        evaluated(client_of(3, state, split=shared), plan, weights, upload=True), 0
    )
    assert not state
    fresh = small_split().client.eval()
    inputs, _ = data_of(103)[:5]
    assert np.array_equal(batches[0].activations, fresh(inputs).detach().numpy())
    # Averaged or relayed weights are tested in place of the client's own.
    play(state)
    before = bits(dict(state_in(state).to_arrays()))
    own = uploaded_test(evaluated(client_of(3, state), upload=True))
    came = start_weights(server_round=2)
    tested = uploaded_test(evaluated(client_of(3, state), weights=came, upload=True))
    assert np.array_equal(tested[0].activations, batches[0].activations)
    assert not np.array_equal(own[0].activations, batches[0].activations)
    assert bits(dict(state_in(state).to_arrays())) == before


def test_tests_that_cannot_be_are_refused() -> None:
    state = RecordDict()
    play(state)
    with pytest.raises(PayloadError, match="0 arrays of a server part came for a test at the clie"):
        client_of(3, state).evaluate([], {**TEST.to_config()})
    uploading = dataclasses.replace(TEST, upload=True, server_arrays=3)
    with pytest.raises(PayloadError, match="3 arrays of a server part came for a test at the ser"):
        client_of(3, state).evaluate(start_weights()[:3], {**uploading.to_config()})
    with pytest.raises(SettingsError, match="no validation data to evaluate on"):
        evaluated(client_of(3, state, validation_batches=None))
    for upload in (False, True):
        with pytest.raises(ClientFailedError, match="no data to evaluate on"):
            evaluated(client_of(3, state, validation_batches=[]), upload=upload)


def test_another_server_part_is_refused_by_name() -> None:
    state = RecordDict()
    play(state)
    server_part = encode_server_part(nn.Linear(2, 2).state_dict(), server_round=2)
    plan = dataclasses.replace(TEST, server_arrays=len(server_part))
    message = r"server, layer server\.5\.weight, field name: 'server\.weight' came in its place"
    with pytest.raises(PayloadError, match=message):
        client_of(3, state).evaluate(server_part, {**plan.to_config()})
