"""ZeroFL's client on one layer worked out by hand: what comes in, and what goes out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import Scalar
from torch import nn

from tests.zerofl_flwr.client_messages import PLAN, Arrays, config_of, decoded, dense, same
from zerofl_flwr.client import ZeroFLClient
from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.model_arrays import get_arrays
from zerofl_flwr.payload import (
    Entry,
    MetaValue,
    NotSent,
    SparseArray,
    Values,
    encode,
    is_payload,
)
from zerofl_flwr.sparsify import sparsify
from zerofl_flwr.training import TrainingSettings

# Weights [4, -3, 2, -1] at half sparsity: the output for [1, 2, 3, 4] is 4 * 1 - 3 * 2 = -2. The
# loss is the output, so that the gradient is the top half of the activations, [0, 0, 3, 4], and a
# step of 0.5 makes the weights [4, -3, 0.5, -3].

START = np.array([[4, -3, 2, -1]], np.float32)


def one_layer_client(**options: Any) -> ZeroFLClient:
    model = sparsify(nn.Sequential(nn.Linear(4, 1, bias=False)), 0.5, masked=["0"])
    batch = (torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([0]))
    return ZeroFLClient(
        model,
        [batch],
        training=TrainingSettings(learning_rate=0.5),
        loss_function=lambda outputs, labels: outputs.sum(),
        **{"partition_id": 0, **options},
    )


@pytest.mark.parametrize(
    ("rule", "content", "uploaded"),
    [
        # 1 - 0.5 + 0.25 of four weights are three; of two -3, both are sent.
        ("top-k-weights", "weights", [4, -3, 0, -3]),
        ("diff-on-top-k-weights", "difference", [0, 0, 0, -2]),
        ("top-k-diff", "difference", [0, 0, -1.5, -2]),
    ],
)
def test_the_upload_is_the_rules_choice_of_the_trained_weights(
    rule: str, content: str, uploaded: list[float]
) -> None:
    client = one_layer_client()
    plan = dataclasses.replace(PLAN, rule=rule)
    reply, samples, metrics = client.fit([START], config_of(plan))
    payload = decoded(reply, client)
    [entry] = payload.entries
    assert (entry.name, entry.content, entry.sparse) == ("0.weight", content, True)
    assert dense(entry).tolist() == [uploaded]
    assert payload.meta == {"round": 3, "masked": "0"}
    assert samples == 1
    assert metrics["train_loss"] == -2.0
    assert float(metrics["train_seconds"]) > 0


def test_a_ratio_equal_to_the_sparsity_uploads_every_weight() -> None:
    client = one_layer_client()
    reply, _, _ = client.fit([START], config_of(dataclasses.replace(PLAN, mask_ratio=0.5)))
    [entry] = decoded(reply, client).entries
    assert (entry.content, entry.sparse) == ("weights", False)
    assert dense(entry).tolist() == [[4, -3, 0.5, -3]]


def test_a_frozen_round_trains_the_pattern_alone_and_uploads_values() -> None:
    client = one_layer_client()
    pattern = np.array([0, 3])
    model = SparseArray.from_indices(pattern, np.array([4, -1], np.float32), (1, 4))
    downlink = encode([Entry("0.weight", model)], {"round": 3}, force_csr=True)
    plan = dataclasses.replace(PLAN, frozen=True)
    reply, _, metrics = client.fit(downlink, config_of(plan))
    # The output is 4 * 1 - 1 * 4 = 0, the gradient [0, 0, 3, 4] inside of the pattern [0, 0, 0, 4].
    assert metrics["train_loss"] == 0.0
    assert get_arrays(client.model)[0].tolist() == [[4, 0, 0, -3]]
    [entry] = decoded(reply, client, pattern_sizes={0: 2}).entries
    assert isinstance(entry.data, Values)
    assert entry.data.values.tolist() == [4, -3]
    # The next round that is not frozen trains everything again.
    client.fit([START], config_of())
    assert get_arrays(client.model)[0].tolist() == [[4, -3, 0.5, -3]]


def test_a_frozen_difference_is_taken_at_the_pattern() -> None:
    client = one_layer_client()
    model = SparseArray.from_indices(np.array([0, 3]), np.array([4, -1], np.float32), (1, 4))
    downlink = encode([Entry("0.weight", model)], {"round": 3}, force_csr=True)
    plan = dataclasses.replace(PLAN, frozen=True, rule="top-k-diff")
    reply, _, _ = client.fit(downlink, config_of(plan))
    [entry] = decoded(reply, client, pattern_sizes={0: 2}).entries
    assert isinstance(entry.data, Values)
    assert (entry.content, entry.data.values.tolist()) == ("difference", [0, -2])


def test_a_frozen_round_without_a_pattern_is_refused() -> None:
    plan = dataclasses.replace(PLAN, frozen=True)
    with pytest.raises(PayloadError, match=r"server, layer 0\.weight, .*without its pattern"):
        one_layer_client().fit(encode([Entry("0.weight", START)], {"round": 3}), config_of(plan))


def test_a_frozen_model_without_positions_is_trained_and_returned_dense() -> None:
    # The mod has decoded it, and knows them; half of the weights, 4 and -3, get gradients.
    client = one_layer_client()
    reply, _, metrics = client.fit([START], config_of(dataclasses.replace(PLAN, frozen=True)))
    assert metrics["train_loss"] == -2.0
    assert [array.tolist() for array in reply] == [[[4, -3, 2, -1]]]
    batch = (torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([0]))
    client.train_batches = [batch]
    reply, _, _ = client.fit([START], config_of(dataclasses.replace(PLAN, frozen=True)))
    assert [array.tolist() for array in reply] == [[[2, -4.5, 2, -1]]]


def test_the_rounds_learning_rate_epochs_and_proximal_weight_count() -> None:
    client = one_layer_client()
    client.fit([START], config_of(others={"learning-rate": 0.25}))
    assert get_arrays(client.model)[0].tolist() == [[4, -3, 1.25, -2]]
    # A second epoch: [4, -3] is still the top half, so that the same gradient comes again.
    client.fit([START], config_of(others={"learning-rate": 0.25, "local-epochs": 2}))
    assert get_arrays(client.model)[0].tolist() == [[4, -3, 0.5, -3]]
    # FedProx adds 2 * (w - w_0) = 2 * [0, 0, -0.75, -1] to the second gradient.
    both: dict[str, Scalar] = {"learning-rate": 0.25, "local-epochs": 2, "proximal_mu": 2}
    client.fit([START], config_of(others=both))
    assert get_arrays(client.model)[0].tolist() == [[4, -3, 0.5 + 0.375, -3 + 0.5]]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"learning-rate": "fast"}, "learning-rate is 'fast'; expected a number from 0"),
        ({"learning-rate": True}, "learning-rate is True; expected a number"),
        ({"learning-rate": 0}, r"learning_rate is 0\.0; it must be a positive number"),
        ({"local-epochs": 1.5}, r"local_epochs is 1\.5; it must be a whole number"),
        ({"local-epochs": 0}, "local_epochs is 0"),
        ({"proximal_mu": -1.0}, r"proximal_mu is -1\.0; expected a number from 0"),
        ({"proximal_mu": float("nan")}, "proximal_mu is nan"),
        ({"zerofl-sparsity": 1.5}, "sparsity must lie between 0 and 1"),
        ({"zerofl-rule": "top-k"}, "unknown uplink rule 'top-k'; did you mean"),
    ],
)
def test_a_bad_entry_of_the_config_is_refused(entry: dict[str, Scalar], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        one_layer_client().fit([START], config_of() | entry)


def test_under_another_strategy_the_reply_is_dense() -> None:
    client = one_layer_client()
    reply, samples, metrics = client.fit([START], {"learning-rate": 0.5})
    assert not is_payload(reply)
    assert [array.tolist() for array in reply] == [[[4, -3, 0.5, -3]]]
    assert samples == 1
    assert set(metrics) == {"train_loss", "train_seconds", "client_memory_mb"}


def test_a_plain_model_trains_dense_and_uploads_all_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    batch = (torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([0]))
    client = ZeroFLClient(
        model,
        [batch],
        partition_id=4,
        training=TrainingSettings(learning_rate=0.5),
        loss_function=lambda outputs, labels: outputs.sum(),
    )
    reply, _, _ = client.fit([START], config_of())
    assert "client 4 trains and uploads dense" in caplog.text
    payload = decoded(reply, client)
    assert dense(payload.entries[0]).tolist() == [[3.5, -4, 0.5, -3]]
    assert payload.meta["masked"] == ""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_upload_is_the_same() -> None:
    client = one_layer_client(device="cuda")
    reply, _, _ = client.fit([START], config_of())
    assert dense(decoded(reply, client).entries[0]).tolist() == [[4, -3, 0, -3]]


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (Entry("0.weight", NotSent((1, 4), np.dtype("float32"))), "encoding"),
        (Entry("0.weight", START, "difference"), "content"),
    ],
    ids=["absent", "difference"],
)
def test_what_only_an_uplink_may_hold_is_refused_in_a_downlink(entry: Entry, field: str) -> None:
    message = rf"server, layer 0\.weight, field {field}: the global model came as"
    with pytest.raises(PayloadError, match=message):
        one_layer_client().fit(encode([entry], {"round": 3}), config_of())


def downlink(name: str = "0.weight", **meta: MetaValue) -> Arrays:
    return encode([Entry(name, START)], {"round": 3, **meta})


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_model_of_another_round_or_of_other_layers_is_refused(method: str) -> None:
    client = one_layer_client(validation_batches=[(torch.ones(1, 4), torch.tensor([0]))])
    run, before = getattr(client, method), get_arrays(client.model)
    with pytest.raises(PayloadError, match="server, field round: round 3 expected, 2 came"):
        run(downlink(round=2), config_of())
    message = r"server, layer 1\.weight, field name: array 0 has .* the model has 0\.weight"
    with pytest.raises(PayloadError, match=message):
        run(downlink("1.weight"), config_of())
    assert same(get_arrays(client.model), before)


def test_a_downlink_may_name_layers_by_position() -> None:
    replies = [one_layer_client().fit(downlink(n), config_of())[0] for n in ("0", "0.weight")]
    assert same(*replies)
