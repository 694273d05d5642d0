"""What came back from the clients that a round asked: answers in order, failures by name."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Generic, TypeVar

from flwr.common import EvaluateRes, FitRes, Scalar
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy

from strategies.member import Member, MemberFailedError
from zerofl_flwr.errors import PayloadError, RoundFailedError

# Far above any real data set; a reply that claims more would drown everybody else's.
MAX_EXAMPLES = 10**9

Result = TypeVar("Result", FitRes, EvaluateRes)


@dataclass(frozen=True)
class Answer(Generic[Result]):
    """What a client replied to a message."""

    member: Member
    result: Result


@dataclass(frozen=True)
class Refusal:
    """A reply that did not come or was refused, and why."""

    partition_id: int | None
    reason: str


def sort_replies(
    results: Sequence[tuple[ClientProxy, Result]],
    failures: Sequence[tuple[ClientProxy, Result] | BaseException],
) -> tuple[list[Answer[Result]], list[Refusal]]:
    """Put replies in partition order, whatever order they came in, and name the failures."""
    replies = [Answer(member_of(proxy), result) for proxy, result in results]
    replies.sort(key=lambda reply: reply.member.partition_id)
    refusals = [_refusal(failure) for failure in failures]
    return replies, in_order(refusals)


def name_missing(
    asked: Sequence[Member], good: Iterable[Answer[Any]], refusals: Sequence[Refusal]
) -> list[Refusal]:
    """Add to the refusals who was asked and neither replied nor failed by name.

    A failure that Flower left nameless is one of the missing clients'. With one of each, it gets
    its name; otherwise all that can be said of each is that it may be one of those failures.
    """
    named = [refusal for refusal in refusals if refusal.partition_id is not None]
    nameless = [refusal for refusal in refusals if refusal.partition_id is None]
    known = {refusal.partition_id for refusal in named}
    known |= {reply.member.partition_id for reply in good}
    missing = [member for member in asked if member.partition_id not in known]
    reasons = "; ".join(refusal.reason for refusal in nameless)
    if not nameless:
        reason = "no reply"
    elif len(missing) == len(nameless) == 1:
        reason = reasons
    else:
        reason = f"no reply, or one of these failures without a name: {reasons}"
    found = [Refusal(member.partition_id, f"{member}: {reason}") for member in missing]
    return [*nameless[len(missing) :], *named, *found]


def check_examples(num_examples: object, sender: str) -> None:
    """Refuse a number of samples that is no whole number from 1 to :data:`MAX_EXAMPLES`.

    Raises
    ------
    PayloadError
        Naming the sender and the field ``num_examples``.
    """
    whole = isinstance(num_examples, int) and not isinstance(num_examples, bool)
    if not whole or not 0 < num_examples <= MAX_EXAMPLES:  # type: ignore[operator]
        raise PayloadError(
            f"num_examples is {num_examples!r}; expected a whole number from 1 to {MAX_EXAMPLES}",
            sender=sender,
            field="num_examples",
        )


def whole_metric(
    metrics: Mapping[str, Scalar], name: str, sender: str, lowest: int, highest: int
) -> int:
    """Read a whole number from a reply's metrics.

    Raises
    ------
    PayloadError
        If it is none, or out of range.
    """
    value = metrics.get(name)
    if type(value) is not int or not lowest <= value <= highest:
        raise PayloadError(
            f"expected a whole number from {lowest} to {highest}, got {reprlib.repr(value)}",
            sender=sender,
            field=name,
        )
    return value


def judge(
    server_round: int,
    good: int,
    refusals: Sequence[Refusal],
    *,
    min_replies: int,
    on_failure: str,
    restarts: int = 0,
) -> None:
    """Log what is refused, and end the run where it cannot, or is not to, go on.

    Parameters
    ----------
    server_round : int
        Round number.
    good : int
        How many replies are good.
    refusals : sequence of Refusal
        The others.
    min_replies : int
        How many good ones a round needs.
    on_failure : str
        ``"skip"``, or ``"raise"`` to end the run for any failure.
    restarts : int
        How many of the others begin again: each may make up for a reply that is missing next time.

    Raises
    ------
    RoundFailedError
        With all reasons.
    """
    for refusal in refusals:
        log(WARNING, "round %d: %s", server_round, refusal.reason)
    reasons = "; ".join(refusal.reason for refusal in refusals)
    if refusals and on_failure == "raise":
        raise RoundFailedError(f"round {server_round}: {reasons}")
    if good + restarts < min_replies:
        raise RoundFailedError(
            f"round {server_round}: {good} good replies, {min_replies} needed. {reasons}"
        )


def in_order(refusals: Iterable[Refusal]) -> list[Refusal]:
    """Sort refusals by partition id, nameless ones first."""
    return sorted(refusals, key=lambda r: -1 if r.partition_id is None else r.partition_id)


def member_of(proxy: ClientProxy) -> Member:
    """Return who a proxy is; one that no cohort made goes by its id, as in a driver of its own."""
    return proxy if isinstance(proxy, Member) else Member(proxy, int(proxy.cid))


def _refusal(failure: tuple[ClientProxy, Result] | BaseException) -> Refusal:
    if isinstance(failure, MemberFailedError):
        return Refusal(failure.partition_id, str(failure))
    if isinstance(failure, BaseException):
        return Refusal(None, f"{type(failure).__name__}: {failure}")
    proxy, result = failure
    member = member_of(proxy)
    return Refusal(member.partition_id, f"{member}: {result.status.message or 'no reason given'}")
