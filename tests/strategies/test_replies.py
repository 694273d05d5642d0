"""Replies are refused by client, layer and field; failures get their names back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.common import FitRes, ndarrays_to_parameters
from numpy.typing import NDArray

from strategies.answers import MAX_EXAMPLES
from strategies.member import Member
from strategies.replies import Reply, ReplyChecker, keep_good
from tests.strategies.bad_replies import FAULTS, FROZEN_FAULTS, Fault, examples
from tests.strategies.federation import OK, Honest, Node, toy, trained
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import (
    Entry,
    NotSent,
    SparseArray,
    TensorSpec,
    Values,
    encode,
)
from zerofl_flwr.settings import RoundPlan, ZeroFLSettings

MODEL = toy(batch_norm=True)
SPECS = [TensorSpec(array.shape, array.dtype) for array in MODEL.values]
PATTERNS: dict[int, NDArray[np.int64]] = {0: np.arange(0, 108, 9), 5: np.arange(1, 180, 17)}
SIZES = {position: pattern.size for position, pattern in PATTERNS.items()}


def plan(server_round: int = 1, **options: Any) -> RoundPlan:
    return ZeroFLSettings(**{"sparsity": 0.9, "mask_ratio": 0.0, **options}).plan(server_round)


FROZEN = plan(2, rule="diff-on-top-k-weights", freeze_mask_after_round=1)


def honest(
    round_plan: RoundPlan,
    patterns: dict[int, NDArray[np.int64]] | None = None,
    partition_id: int = 3,
) -> FitRes:
    after = trained(MODEL.values, partition_id)
    return Honest(MODEL, partition_id).reply(round_plan, MODEL.values, after, patterns)


def reply(result: FitRes, partition_id: int = 3) -> Reply:
    return Reply(Member(Node(partition_id), partition_id), result)


@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
@pytest.mark.parametrize("mask_ratio", [0.0, 0.8, 0.9])
def test_an_honest_reply_is_decoded(rule: str, mask_ratio: float) -> None:
    round_plan = plan(rule=rule, mask_ratio=mask_ratio)
    update = ReplyChecker(SPECS, round_plan).decode(reply(honest(round_plan)))
    assert [entry.name for entry in update.entries] == MODEL.names
    assert update.masked == [0, 5]
    assert isinstance(update.entries[4].data, NotSent)
    assert isinstance(update.entries[0].data, SparseArray) == (mask_ratio == 0)
    assert update.entries[0].sparse == (mask_ratio < 0.9)
    partial = rule != "top-k-weights" and mask_ratio < 0.9
    assert update.entries[0].content == ("difference" if partial else "weights")


@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
def test_an_honest_reply_at_frozen_patterns_is_decoded(rule: str) -> None:
    round_plan = plan(2, rule=rule, freeze_mask_after_round=1)
    result = honest(round_plan, PATTERNS)
    update = ReplyChecker(SPECS, round_plan, SIZES).decode(reply(result))
    data = update.entries[5].data
    assert isinstance(data, Values)
    assert data.values.size == 11


def test_a_client_that_masks_nothing_is_welcome() -> None:
    round_plan = plan(rule="top-k-diff")
    entries = [
        Entry(name, array if array.dtype.kind == "f" else NotSent(array.shape, array.dtype))
        for name, array in MODEL.arrays.items()
    ]
    payload = ndarrays_to_parameters(encode(entries, {"round": 1, "masked": ""}))
    update = ReplyChecker(SPECS, round_plan).decode(reply(FitRes(OK, payload, 5, {})))
    assert update.masked == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_fault_is_named(fault: Fault) -> None:
    checker = ReplyChecker(SPECS, plan())
    with pytest.raises(PayloadError) as caught:
        checker.decode(reply(fault.spoil(honest(plan()))))
    error = caught.value
    assert (error.sender, error.layer, error.field) == ("client 3", fault.layer, fault.field)
    assert str(error).startswith("client 3, ")
    assert len(str(error)) < 500


@pytest.mark.parametrize("fault", FROZEN_FAULTS.values(), ids=FROZEN_FAULTS)
def test_each_fault_at_a_frozen_pattern_is_named(fault: Fault) -> None:
    checker = ReplyChecker(SPECS, FROZEN, SIZES)
    with pytest.raises(PayloadError) as caught:
        checker.decode(reply(fault.spoil(honest(FROZEN, PATTERNS))))
    error = caught.value
    assert (error.sender, error.layer, error.field) == ("client 3", fault.layer, fault.field)


@pytest.mark.parametrize("rule", ["diff-on-top-k-weights", "top-k-diff"])
def test_weights_are_refused_where_differences_were_asked_for(rule: str) -> None:
    with pytest.raises(PayloadError, match=r"expected difference under rule .*, got weights"):
        ReplyChecker(SPECS, plan(rule=rule)).decode(reply(honest(plan())))


def test_a_client_without_zerofl_is_told_what_it_lacks() -> None:
    with pytest.raises(PayloadError, match="only a ZeroFLClient, or a client with the mod"):
        ReplyChecker(SPECS, plan()).decode(
            reply(FAULTS["a plain list of arrays"].spoil(honest(plan())))
        )


@pytest.mark.parametrize("count", [1, MAX_EXAMPLES])
def test_numbers_of_samples_at_the_limits(count: int) -> None:
    update = ReplyChecker(SPECS, plan()).decode(reply(examples(count)(honest(plan()))))
    assert len(update.entries) == len(SPECS)


def test_the_largest_honest_payload_is_within_the_limit() -> None:
    # Names as long as they may be, six or twelve bytes a character in JSON; every layer dense.
    names = [chr(0x1F600 + index % 50) * 255 + chr(0x4E00 + index) for index in range(300)]
    array = np.ones((3, 4), np.float32)
    specs = [TensorSpec(array.shape, array.dtype)] * len(names)
    masked = ",".join(map(str, range(len(names))))
    payload = encode([Entry(name, array) for name in names], {"round": 1, "masked": masked})
    result = FitRes(OK, ndarrays_to_parameters(payload), 5, {})
    assert len(ReplyChecker(specs, plan()).decode(reply(result)).entries) == 300
    assert len(result.parameters.tensors[0]) > 900_000


def test_good_replies_are_kept_and_bad_ones_named() -> None:
    results = [honest(plan(), partition_id=partition) for partition in range(4)]
    results[1] = FAULTS["another round"].spoil(results[1])
    results[2] = FAULTS["no samples"].spoil(results[2])
    replies = [reply(result, partition) for partition, result in enumerate(results)]
    good, refused = keep_good(replies, ReplyChecker(SPECS, plan()))
    assert good == [replies[0], replies[3]]
    assert [refusal.partition_id for refusal in refused] == [1, 2]
    assert refused[0].reason == ("client 1, field round: round 1 expected, 99 came")
    assert refused[1].reason == (
        "client 2, field num_examples: num_examples is 0; "
        "expected a whole number from 1 to 1000000000"
    )
