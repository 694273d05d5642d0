"""What the client mod does with the messages of a round."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    Scalar,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat as compat

from tests.zerofl_flwr.plain_client import (
    AFTER,
    BEFORE,
    MASKED,
    PLAN,
    PlainClient,
    answer,
    bits,
    downlink,
    expected_arrays,
    fit,
    uploaded,
)
from zerofl_flwr.memory import MEMORY, memory_metric
from zerofl_flwr.mod import sparse_uplink
from zerofl_flwr.payload import (
    Entry,
    NotSent,
    SparseArray,
    Values,
    encode,
    is_payload,
)


@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
def test_the_reply_is_what_the_rules_select(rule: str) -> None:
    plan = dataclasses.replace(PLAN, rule=rule)
    client = PlainClient()
    config: dict[str, Scalar] = {"learning-rate": 0.1, **plan.to_config()}
    result = fit(client, sparse_uplink(), ndarrays_to_parameters(BEFORE), config)
    assert bits(parameters_to_ndarrays(result.parameters)) == bits(expected_arrays(MASKED, plan))
    assert bits(client.got) == bits(BEFORE)
    assert client.config == config
    seconds = result.metrics.pop("train_seconds")
    assert isinstance(seconds, float)
    assert seconds > 0
    assert result.metrics.pop(MEMORY) == pytest.approx(memory_metric()[MEMORY], rel=0.1)
    assert (result.num_examples, result.metrics) == (17, {"train_loss": 0.5})
    assert result.status.code == Code.OK


def test_a_sparse_downlink_reaches_the_client_dense() -> None:
    parameters, dense = downlink()
    assert is_payload(parameters.tensors)
    client = PlainClient()
    plan = dataclasses.replace(PLAN, rule="top-k-diff")
    result = fit(client, sparse_uplink(), parameters, plan.to_config())  # type: ignore[arg-type]
    assert bits(client.got) == bits(dense)
    expected = expected_arrays(MASKED, plan, before=dense)
    assert bits(parameters_to_ndarrays(result.parameters)) == bits(expected)


@pytest.mark.parametrize("sparse", [True, False])
def test_evaluation_gets_the_model_dense_and_its_reply_is_left_alone(sparse: bool) -> None:
    parameters, dense = downlink() if sparse else (ndarrays_to_parameters(BEFORE), BEFORE)
    client = PlainClient()
    config: dict[str, Scalar] = {"batches": 3, **PLAN.to_config()}
    content = compat.evaluateins_to_recorddict(EvaluateIns(parameters, config), True)
    reply = answer(client, sparse_uplink(), content, MessageType.EVALUATE)
    assert bits(client.got) == bits(dense)
    assert client.config == config
    result = compat.recorddict_to_evaluateres(reply.content)
    assert result == EvaluateRes(Status(Code.OK, "Success"), 1.5, 9, {"accuracy": 0.25})


def test_evaluation_under_another_strategy_passes_through() -> None:
    client = PlainClient()
    ins = EvaluateIns(ndarrays_to_parameters(BEFORE), {"batches": 3})
    content = compat.evaluateins_to_recorddict(ins, True)
    answer(client, sparse_uplink(), content, MessageType.EVALUATE)
    assert bits(client.got) == bits(BEFORE)
    assert client.config == {"batches": 3}


@pytest.mark.parametrize(
    ("arguments", "keep"),
    [
        ({}, "0.3"),
        ({"sparsity": 0.9}, "0.2"),
        ({"mask_ratio": 0}, "0.2"),
        ({"sparsity": "0.95", "mask_ratio": Decimal("0.05")}, "0.1"),
        ({"sparsity": 0.0}, "1"),
    ],
)
def test_what_the_mod_was_told_wins_over_the_server(arguments: dict[str, Any], keep: str) -> None:
    mod = sparse_uplink(**arguments)
    result = fit(PlainClient(), mod, ndarrays_to_parameters(BEFORE))
    expected = expected_arrays(MASKED, keep=keep)
    assert bits(parameters_to_ndarrays(result.parameters)) == bits(expected)


def test_a_rule_of_its_own_wins_too() -> None:
    mod = sparse_uplink(rule="top-k-gradients")
    payload = uploaded(fit(PlainClient(), mod, ndarrays_to_parameters(BEFORE)))
    assert [payload.entries[p].content for p in MASKED] == ["difference", "difference"]


@pytest.mark.parametrize(
    ("masked", "positions"),
    [
        (None, MASKED),
        ([7, 0, 7], [0, 7]),
        ((), []),
        (lambda position, shape: len(shape) == 4, [0, 2, 3]),
        (lambda position, shape: position == 5 and shape == (30, 20), [5]),
    ],
    ids=["default", "positions", "none", "predicate by shape", "predicate by position"],
)
def test_what_is_masked_can_be_chosen(masked: Any, positions: list[int]) -> None:
    result = fit(PlainClient(), sparse_uplink(masked=masked), ndarrays_to_parameters(BEFORE))
    payload = uploaded(result)
    assert payload.meta["masked"] == ",".join(map(str, positions))
    assert [p for p, entry in enumerate(payload.entries) if entry.sparse] == positions
    assert bits(parameters_to_ndarrays(result.parameters)) == bits(expected_arrays(positions))
    assert isinstance(payload.entries[4].data, NotSent)


def test_a_frozen_mask_sends_its_values_alone() -> None:
    generator = np.random.default_rng(5)
    patterns = {p: np.flatnonzero(generator.random(BEFORE[p].size) < 0.2) for p in MASKED}
    entries = []
    for p, array in enumerate(BEFORE):
        if p in patterns:
            values = array.reshape(-1)[patterns[p]]
            entries.append(
                Entry(str(p), SparseArray.from_indices(patterns[p], values, array.shape))
            )
        else:
            entries.append(Entry(str(p), array))
    plan = dataclasses.replace(PLAN, frozen=True)
    parameters = ndarrays_to_parameters(encode(entries, {"round": 2}, force_csr=True))
    result = fit(PlainClient(), sparse_uplink(), parameters, plan.to_config())  # type: ignore[arg-type]
    payload = uploaded(result, {p: len(pattern) for p, pattern in patterns.items()})
    for p, pattern in patterns.items():
        data = payload.entries[p].data
        assert isinstance(data, Values)
        assert np.array_equal(data.values, AFTER[p].reshape(-1)[pattern])
