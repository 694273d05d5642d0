"""A client's end of a round: what it reads of a downlink, refuses, and replies."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters
from numpy.typing import NDArray

from tests.zerofl_flwr.client_messages import PLAN, Arrays, dense, same
from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.exchange import (
    Received,
    check_names,
    check_round,
    names_by_position,
    read_downlink,
    write_reply,
)
from zerofl_flwr.payload import (
    Entry,
    MetaValue,
    NotSent,
    SparseArray,
    TensorSpec,
    Values,
    decode,
    encode,
)

# Half of four weights and a quarter more: three of them go up.
WEIGHT = np.array([[4, -3, 2, -1]], np.float32)
STEPS = np.array(7, np.int64)
NAMES = ["fc.weight", "steps"]
SPECS = [TensorSpec(WEIGHT.shape, WEIGHT.dtype), TensorSpec((), STEPS.dtype)]
FROZEN = dataclasses.replace(PLAN, frozen=True)


def downlink(names: list[str] | None = None, **meta: MetaValue) -> Arrays:
    """Encode a model that keeps the positions 0 and 3 of its weight, the second as a zero."""
    names = NAMES if names is None else names
    kept = SparseArray.from_indices(np.array([0, 3]), np.array([4, 0], np.float32), (1, 4))
    entries = [Entry(names[0], kept), Entry(names[1], STEPS)]
    return encode(entries, {"round": 3, **meta}, force_csr=True)


@pytest.mark.parametrize("specs", [SPECS, None])
@pytest.mark.parametrize("wire", [list, lambda arrays: ndarrays_to_parameters(arrays).tensors])
def test_a_payload_is_read_dense(wire: Any, specs: list[TensorSpec] | None) -> None:
    received = read_downlink(wire(downlink()), specs, PLAN, names=NAMES)
    assert same(received.arrays, [np.array([[4, 0, 0, 0]], np.float32), STEPS])
    assert received.patterns == {}
    assert received.encoded
    frozen = read_downlink(wire(downlink()), specs, FROZEN, names=NAMES)
    assert same(frozen.arrays, received.arrays)
    assert {p: where.tolist() for p, where in frozen.patterns.items()} == {0: [0, 3]}


@pytest.mark.parametrize("wire", [list, lambda arrays: ndarrays_to_parameters(arrays).tensors])
@pytest.mark.parametrize("plan", [None, PLAN, FROZEN])
def test_a_plain_list_is_read_as_it_is(wire: Any, plan: Any) -> None:
    received = read_downlink(wire([WEIGHT, STEPS]), SPECS, plan, names=NAMES)
    assert same(received.arrays, [WEIGHT, STEPS])
    assert (received.patterns, received.encoded) == ({}, False)


def test_broken_bytes_are_the_servers_fault() -> None:
    with pytest.raises(PayloadError, match=r"server, field arrays: .*npy"):
        read_downlink([b"\x93NUMPY but not really"], None, PLAN)


@pytest.mark.parametrize("came", [2, 4, "3", 3.0, True, None])
def test_a_model_of_another_round_is_refused(came: MetaValue | None) -> None:
    # True is 1 to Python, which the plan of round 1 must not take it for.
    plan = dataclasses.replace(PLAN, server_round=1) if came is True else PLAN
    with pytest.raises(PayloadError) as caught:
        check_round(came, plan, sender="server")
    assert (caught.value.sender, caught.value.field) == ("server", "round")
    assert f"round {plan.server_round} expected, {came!r} came" in str(caught.value)
    if came is not None:
        with pytest.raises(PayloadError, match="field round"):
            read_downlink(downlink(round=came), SPECS, plan)


def test_a_model_without_a_round_is_refused_and_without_a_plan_is_not() -> None:
    arrays = encode([Entry("fc.weight", WEIGHT), Entry("steps", STEPS)])
    with pytest.raises(PayloadError, match="server, field round: round 3 expected, None came"):
        read_downlink(arrays, SPECS, PLAN)
    assert same(read_downlink(arrays, SPECS, None).arrays, [WEIGHT, STEPS])


@pytest.mark.parametrize(
    ("came", "layer"),
    [
        (["fc.bias", "steps"], "fc.bias"),
        (["fc.weight", "0"], "0"),
        (["steps", "fc.weight"], "steps"),
        (["0", "steps"], "0"),
        (["1", "0"], "1"),
    ],
)
def test_other_names_than_the_models_are_refused(came: list[str], layer: str) -> None:
    for call in (
        lambda: check_names(came, NAMES, sender="client 3"),
        lambda: read_downlink(downlink(came), SPECS, PLAN, names=NAMES),
    ):
        with pytest.raises(PayloadError) as caught:
            call()
        assert (caught.value.layer, caught.value.field) == (layer, "name")
    assert read_downlink(downlink(came), SPECS, PLAN).encoded  # who knows no names asks for none


def test_positions_and_the_models_own_names_are_welcome() -> None:
    assert names_by_position(3) == ["0", "1", "2"]
    for names in (NAMES, tuple(NAMES), ["0", "1"]):
        check_names(names, NAMES, sender="server")
        assert read_downlink(downlink(list(names)), SPECS, PLAN, names=NAMES).encoded


def reply(plan: Any, trained: NDArray[Any], received: Received, **options: Any) -> Any:
    arrays = write_reply(plan, received, [trained, STEPS], [0], **options)
    return decode(arrays, SPECS, sender="client 0", pattern_sizes={0: 2})


def test_a_reply_holds_the_plans_share_by_the_plans_rule() -> None:
    received = Received([WEIGHT, STEPS], {}, encoded=False)
    trained = np.array([[4, -3, 0.5, -3]], np.float32)
    payload = reply(PLAN, trained, received, names=NAMES)
    assert payload.meta == {"round": 3, "masked": "0"}
    assert [entry.name for entry in payload.entries] == NAMES
    weight, steps = payload.entries
    assert (weight.content, weight.sparse, weight.data.tolist()) == (
        "weights",
        True,
        [[4, -3, 0, -3]],
    )
    assert steps.data == NotSent((), np.dtype(np.int64))


def test_a_reply_names_positions_and_may_have_a_rule_and_a_share_of_its_own() -> None:
    received = Received([WEIGHT, STEPS], {}, encoded=True)
    trained = np.array([[4, -3, 0.5, -3]], np.float32)
    payload = reply(PLAN, trained, received, rule="top-k-diff", keep=Decimal("0.25"))
    assert [entry.name for entry in payload.entries] == ["0", "1"]
    assert payload.entries[0].content == "difference"
    assert dense(payload.entries[0]).tolist() == [[0, 0, 0, -2]]


def test_a_frozen_reply_holds_the_values_at_the_pattern() -> None:
    received = read_downlink(downlink(), SPECS, FROZEN)
    entry = reply(FROZEN, np.array([[5, 9, 9, 1]], np.float32), received).entries[0]
    assert isinstance(entry.data, Values)
    assert entry.data.values.tolist() == [5, 1]


def test_a_reply_of_another_model_is_refused() -> None:
    received = Received([WEIGHT, STEPS], {}, encoded=False)
    with pytest.raises(PayloadError, match="client: the client returned 1 arrays for a model of 2"):
        write_reply(PLAN, received, [WEIGHT], [0])
    with pytest.raises(PayloadError, match=r"layer fc\.weight, field shape"):
        write_reply(PLAN, received, [WEIGHT.T, STEPS], [0], names=NAMES)
    with pytest.raises(SettingsError, match="layer 1 is int64; only floats can be masked"):
        write_reply(PLAN, received, [WEIGHT, STEPS], [0, 1])


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (Entry("fc.weight", NotSent((1, 4), np.dtype("float32"))), "encoding"),
        (Entry("fc.weight", WEIGHT, "difference"), "content"),
    ],
)
def test_what_only_an_uplink_may_hold_is_refused(entry: Entry, field: str) -> None:
    arrays = encode([entry, Entry("steps", STEPS)], {"round": 3})
    message = rf"server, layer fc\.weight, field {field}: the global model came as"
    with pytest.raises(PayloadError, match=message):
        read_downlink(arrays, SPECS, PLAN)
