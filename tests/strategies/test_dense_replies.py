"""Whole arrays in replies: what is read, and what is refused by client, layer and field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.common import FitRes, Parameters, ndarrays_to_parameters

from strategies.answers import Refusal
from strategies.dense_replies import (
    check_count,
    check_model,
    check_round_told,
    read_arrays,
    split_checked,
)
from strategies.replies import Reply
from tests.strategies.dense_federation import NAMES, START, answer, fit_res
from tests.strategies.federation import OK, f32, same_bits
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import TensorSpec

SPECS = [TensorSpec(array.shape, array.dtype) for array in START]


def with_array(position: int, array: Any) -> FitRes:
    arrays = list(START)
    arrays[position] = array
    return fit_res(arrays)


def broken(position: int, data: bytes) -> FitRes:
    tensors = ndarrays_to_parameters(START).tensors
    tensors[position] = data
    return FitRes(OK, Parameters(tensors, "numpy.ndarray"), 10, {})


def test_arrays_are_read_as_they_are_and_are_not_copied() -> None:
    tensors = ndarrays_to_parameters(START).tensors
    arrays = read_arrays(tensors, SPECS, NAMES, "client 3")
    assert same_bits(arrays, START)
    assert not any(array.flags.writeable for array in arrays)
    check_model(answer(3, fit_res(START)), SPECS, NAMES)
    wide = read_arrays(
        ndarrays_to_parameters([np.asfortranarray(START[0])]).tensors, SPECS[:1], NAMES[:1], "x"
    )
    assert same_bits(wide, START[:1])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (fit_res(START, 0), "client 3, field num_examples: num_examples is 0"),
        (fit_res(START, -5), "client 3, field num_examples: num_examples is -5"),
        (fit_res(START, 2.0), "client 3, field num_examples: num_examples is 2.0"),
        (fit_res(START[:1]), "client 3, field arrays: expected 2 arrays, got 1"),
        (
            with_array(0, f32([[1, 2]])),
            "client 3, layer fc.weight, field shape: expected shape (2, 2), got (1, 2)",
        ),
        (
            with_array(1, np.zeros(2)),
            "client 3, layer fc.bias, field dtype: expected float32, got float64",
        ),
        (
            with_array(0, f32([[1, np.nan], [np.inf, 4]])),
            "client 3, layer fc.weight, field values: 2 values are not finite",
        ),
        (with_array(1, f32([-np.inf, 0])), "client 3, layer fc.bias, field values: 1 values"),
        (broken(1, b"no array"), "client 3, layer fc.bias, field array: "),
    ],
)
def test_what_is_no_model_is_refused(result: FitRes, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        check_model(answer(3, result), SPECS, NAMES)
    assert str(caught.value).startswith(message)


def test_a_part_of_a_message_may_have_a_name_of_its_own() -> None:
    tensors = ndarrays_to_parameters([f32([1.0, np.nan]), f32([1.0])]).tensors
    specs = [TensorSpec((2,), np.dtype("float32"))]
    message = "client 1, layer b, field control_variates: 1 values are not finite"
    with pytest.raises(PayloadError, match=message):
        read_arrays(tensors[:1], specs, ["b"], "client 1", field="control_variates")
    message = r"client 1, layer b, field control_variates: expected shape \(2,\), got \(1,\)"
    with pytest.raises(PayloadError, match=message):
        read_arrays(tensors[1:], specs, ["b"], "client 1", field="control_variates")


def test_the_number_of_arrays_is_counted() -> None:
    check_count([b"", b""], 2, "client 0")
    with pytest.raises(PayloadError, match="client 0, field arrays: expected 0 arrays, got 1"):
        check_count([b""], 0, "client 0")


@pytest.mark.parametrize("told", [3, 5, "4", 4.0, True, None])
def test_another_round_is_refused(told: Any) -> None:
    check_round_told({"round": 4}, 4, "client 2")
    metrics = {} if told is None else {"round": told}
    message = f"client 2, field round: a reply to round 4 expected, to {told!r} came"
    with pytest.raises(PayloadError) as caught:
        check_round_told(metrics, 4, "client 2")
    assert str(caught.value) == message


def test_a_round_need_not_be_told_to_who_does_not_ask() -> None:
    check_round_told({}, 4, "client 2", required=False)
    with pytest.raises(PayloadError, match="to 3 came"):
        check_round_told({"round": 3}, 4, "client 2", required=False)


def test_replies_are_split_in_their_order() -> None:
    def check(reply: Reply) -> None:
        if reply.result.num_examples > 10:
            raise PayloadError("too much", sender=str(reply.member), field="num_examples")

    replies = [answer(p, fit_res(START, n)) for p, n in ((1, 10), (2, 11), (4, 3), (7, 30))]
    good, refused = split_checked(replies, check)
    assert [reply.member.partition_id for reply in good] == [1, 4]
    assert refused == [
        Refusal(2, "client 2, field num_examples: too much"),
        Refusal(7, "client 7, field num_examples: too much"),
    ]
