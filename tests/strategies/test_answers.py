"""Answers come in partition order, and failures get their names back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status

from strategies.answers import (
    MAX_EXAMPLES,
    Answer,
    Refusal,
    check_examples,
    in_order,
    judge,
    member_of,
    name_missing,
    sort_replies,
    whole_metric,
)
from strategies.member import Member, MemberFailedError
from tests.strategies.federation import OK, Node
from zerofl_flwr.errors import PayloadError, RoundFailedError

FIT = FitRes(OK, Parameters([], ""), 5, {})


def test_replies_come_in_partition_order_and_failures_get_their_names() -> None:
    failed = replace(FIT, status=Status(Code.FIT_NOT_IMPLEMENTED, "cannot train"))
    silent = replace(FIT, status=Status(Code.FIT_NOT_IMPLEMENTED, ""))
    replies, refusals = sort_replies(
        [(Member(Node(partition), partition), FIT) for partition in (11, 2, 30)],
        [
            MemberFailedError(7, "out of memory"),
            (Member(Node(5), 5), failed),
            RuntimeError("the line broke"),
            (Member(Node(6), 6), silent),
        ],
    )
    assert [reply.member.partition_id for reply in replies] == [2, 11, 30]
    assert refusals == [
        Refusal(None, "RuntimeError: the line broke"),
        Refusal(5, "client 5: cannot train"),
        Refusal(6, "client 6: no reason given"),
        Refusal(7, "client 7: out of memory"),
    ]


def test_bare_proxies_go_by_their_client_id() -> None:
    replies, refusals = sort_replies(
        [(Node(None, cid="12"), FIT), (Node(None, cid="4"), FIT)],
        [(Node(None, cid="8"), FIT)],
    )
    assert [reply.member.partition_id for reply in replies] == [4, 12]
    assert refusals == [Refusal(8, "client 8: Success")]


def missing(
    asked: Sequence[int], good: Sequence[int], refusals: Sequence[Refusal]
) -> list[tuple[int | None, str]]:
    members = {partition: Member(Node(partition), partition) for partition in range(9)}
    replies = [Answer(members[partition], FIT) for partition in good]
    named = name_missing([members[partition] for partition in asked], replies, refusals)
    return [(refusal.partition_id, refusal.reason) for refusal in named]


LOST, BROKEN = Refusal(None, "ValueError: lost"), Refusal(None, "ValueError: broken")


@pytest.mark.parametrize(
    ("asked", "good", "refusals", "expected"),
    [
        ([1, 2], [1, 2], [], []),
        ([1, 2, 3], [2], [], [(1, "client 1: no reply"), (3, "client 3: no reply")]),
        ([1, 2], [1], [Refusal(2, "client 2: ill")], [(2, "client 2: ill")]),
        ([1, 2], [1], [LOST], [(2, "client 2: ValueError: lost")]),
        ([], [1], [LOST], [(None, "ValueError: lost")]),
        ([1], [1], [LOST], [(None, "ValueError: lost")]),
    ],
)
def test_who_did_not_reply_is_named(
    asked: list[int],
    good: list[int],
    refusals: list[Refusal],
    expected: list[tuple[int | None, str]],
) -> None:
    assert missing(asked, good, refusals) == expected


@pytest.mark.parametrize("nameless", [[LOST], [LOST, BROKEN]])
def test_several_missing_clients_are_not_blamed_one_by_one(nameless: list[Refusal]) -> None:
    # Which of the two a nameless failure was cannot be known; both are counted, once each.
    named = missing([1, 2, 3], [2], nameless)
    assert [partition for partition, _ in named] == [1, 3]
    for partition, reason in named:
        assert reason.startswith(f"client {partition}: no reply, or one of these failures")
        assert all(refusal.reason in reason for refusal in nameless)


def test_more_nameless_failures_than_missing_clients() -> None:
    named = missing([1, 2], [1], [LOST, BROKEN])
    assert [partition for partition, _ in named] == [None, 2]
    either = (
        "no reply, or one of these failures without a name: ValueError: lost; ValueError: broken"
    )
    assert named[1][1] == f"client 2: {either}"


def test_answers_to_a_test_are_sorted_the_same_way() -> None:
    good, ill = EvaluateRes(OK, 0.5, 3, {}), EvaluateRes(Status(Code.OK, "ill"), 0, 0, {})
    replies, refusals = sort_replies(
        [(Member(Node(partition), partition), good) for partition in (8, 1)],
        [(Member(Node(4), 4), ill), MemberFailedError(2, "gone")],
    )
    assert [(reply.member.partition_id, reply.result) for reply in replies] == [
        (1, good),
        (8, good),
    ]
    assert refusals == [Refusal(2, "client 2: gone"), Refusal(4, "client 4: ill")]


def test_refusals_are_ordered_with_nameless_ones_first() -> None:
    refusals = [Refusal(3, "c"), Refusal(None, "a"), Refusal(0, "b")]
    assert [refusal.reason for refusal in in_order(refusals)] == ["a", "b", "c"]


@pytest.mark.parametrize("count", [0, -1, MAX_EXAMPLES + 1, True, 2.0, "3", None])
def test_a_number_of_samples_that_cannot_be(count: Any) -> None:
    with pytest.raises(PayloadError, match="client 3, field num_examples: num_examples is "):
        check_examples(count, "client 3")


@pytest.mark.parametrize("count", [1, MAX_EXAMPLES])
def test_numbers_of_samples_at_the_limits_are_taken(count: int) -> None:
    check_examples(count, "client 3")
    assert 1 <= count <= MAX_EXAMPLES


def test_a_round_goes_on_while_enough_replies_are_good(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    refusals = [Refusal(2, "client 2: ill"), Refusal(4, "client 4: NaN")]
    judge(3, 2, refusals, min_replies=2, on_failure="skip")
    told = list(dict.fromkeys(flower_log.messages))  # each may come twice, from two loggers
    assert told == ["round 3: client 2: ill", "round 3: client 4: NaN"]
    message = "round 3: 1 good replies, 2 needed. client 2: ill; client 4: NaN"
    with pytest.raises(RoundFailedError, match=message):
        judge(3, 1, refusals, min_replies=2, on_failure="skip")
    with pytest.raises(RoundFailedError, match="round 3: client 2: ill; client 4: NaN"):
        judge(3, 2, refusals, min_replies=2, on_failure="raise")
    judge(3, 2, [], min_replies=2, on_failure="raise")
    # Clients that begin again may make up for what is missing.
    judge(3, 0, refusals, min_replies=2, on_failure="skip", restarts=2)
    with pytest.raises(RoundFailedError, match="round 3: 0 good replies, 2 needed"):
        judge(3, 0, refusals, min_replies=2, on_failure="skip", restarts=1)
    with pytest.raises(RoundFailedError, match="round 3: client 2: ill"):
        judge(3, 0, refusals, min_replies=2, on_failure="raise", restarts=2)


@pytest.mark.parametrize("value", [None, True, 2.0, "2", 0, 6])
def test_a_metric_that_is_no_whole_number_in_its_range_is_refused(value: Any) -> None:
    assert [whole_metric({"steps": n}, "steps", "client 4", 1, 5) for n in (1, 5)] == [1, 5]
    message = f"client 4, field steps: expected a whole number from 1 to 5, got {value!r}"
    with pytest.raises(PayloadError) as refused:
        whole_metric({} if value is None else {"steps": value}, "steps", "client 4", 1, 5)
    assert str(refused.value) == message


def test_a_member_stays_who_it_is() -> None:
    member = Member(Node(8, cid="17"), 3)
    assert member_of(member) is member
    assert member_of(Node(8, cid="17")).partition_id == 17
