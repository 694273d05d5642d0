"""Check the replies of a ZeroFL round, name what is wrong, and decode the good ones on demand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy

from strategies.cohort import Member, MemberFailedError
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import Entry, NotSent, Payload, TensorSpec, Values, decode
from zerofl_flwr.settings import RoundPlan

# Far above any real data set; a reply that claims more would drown everybody else's.
MAX_EXAMPLES = 10**9
_HEADER_BYTES_PER_LAYER = 4096
_HEADER_BYTES = 65536

Failure = tuple[ClientProxy, FitRes] | BaseException


@dataclass(frozen=True)
class Reply:
    """A reply that passed its checks."""

    member: Member
    result: FitRes


@dataclass(frozen=True)
class Refusal:
    """A reply that did not come or was refused, and why."""

    partition_id: int | None
    reason: str


class ReplyChecker:
    """Decodes replies to one round and holds them against what was asked for.

    Parameters
    ----------
    specs : sequence of TensorSpec
        Shape and dtype of each array of the global model.
    plan : RoundPlan
        What the clients were told.
    pattern_sizes : mapping of int to int, optional
        Number of values expected at each frozen position of the list.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        plan: RoundPlan,
        pattern_sizes: Mapping[int, int] | None = None,
    ) -> None:
        self._specs = specs
        self._plan = plan
        self._pattern_sizes = dict(pattern_sizes or {})
        # No layer travels in more than its dense bytes; the rest is for headers.
        dense = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)
        self._max_bytes = dense + _HEADER_BYTES_PER_LAYER * len(specs) + _HEADER_BYTES

    def decode(self, reply: Reply) -> Payload:
        """Decode one reply.

        Raises
        ------
        PayloadError
            Naming the client, the layer and the field.
        """
        sender = str(reply.member)
        _check_examples(reply.result.num_examples, sender)
        payload = decode(
            reply.result.parameters.tensors,
            self._specs,
            sender=sender,
            pattern_sizes=self._pattern_sizes or None,
            max_bytes=self._max_bytes,
        )
        self._check_round(payload, sender)
        for position, entry in enumerate(payload.entries):
            self._check_content(position, entry, sender)
        masked_positions(payload, sender)
        return payload

    def _check_round(self, payload: Payload, sender: str) -> None:
        came = payload.meta.get("round")
        if came != self._plan.server_round or isinstance(came, bool):
            raise PayloadError(
                f"expected a reply to round {self._plan.server_round}, got one to round {came!r}",
                sender=sender,
                field="round",
            )

    def _check_content(self, position: int, entry: Entry, sender: str) -> None:
        if isinstance(entry.data, NotSent) and np.issubdtype(entry.data.dtype, np.floating):
            raise PayloadError(
                "a tensor of weights was left out; only integer tensors may be",
                sender=sender,
                layer=entry.name,
                field="encoding",
            )
        partial = entry.sparse or isinstance(entry.data, Values)
        expected = "difference" if partial and self._plan.rule != "top-k-weights" else "weights"
        if entry.content != expected:
            raise PayloadError(
                f"expected {expected} under rule {self._plan.rule}, got {entry.content}",
                sender=sender,
                layer=entry.name,
                field="content",
            )
        if position in self._pattern_sizes and not isinstance(entry.data, Values):
            raise PayloadError(
                "the mask is frozen: expected values at its positions only",
                sender=sender,
                layer=entry.name,
                field="encoding",
            )


def sort_replies(
    results: Sequence[tuple[ClientProxy, FitRes]], failures: Sequence[Failure]
) -> tuple[list[Reply], list[Refusal]]:
    """Put replies in partition order, whatever order they came in, and name the failures."""
    replies = [Reply(_member(proxy), result) for proxy, result in results]
    replies.sort(key=lambda reply: reply.member.partition_id)
    refusals = [_refusal(failure) for failure in failures]
    refusals.sort(key=lambda refusal: -1 if refusal.partition_id is None else refusal.partition_id)
    return replies, refusals


def masked_positions(payload: Payload, sender: str) -> list[int]:
    """Return which of its arrays a client masks, as its payload says.

    Raises
    ------
    PayloadError
        If that is not a list of positions in the model.
    """
    text = payload.meta.get("masked")
    parts = text.split(",") if isinstance(text, str) and text else []
    count = len(payload.entries)
    if not isinstance(text, str) or not all(
        part.isascii() and part.isdigit() and len(part) < 10 and int(part) < count for part in parts
    ):
        raise PayloadError(
            f"expected positions of masked arrays below {count}, got {text!r}",
            sender=sender,
            field="masked",
        )
    return sorted({int(part) for part in parts})


def keep_good(replies: Sequence[Reply], checker: ReplyChecker) -> tuple[list[Reply], list[Refusal]]:
    """Split replies into good and refused.

    Every reply is decoded here once only to be checked, and again when it is added: all shares
    must be known before the first addition, and keeping decoded replies would take memory that
    grows with their number.
    """
    good: list[Reply] = []
    refused: list[Refusal] = []
    for reply in replies:
        try:
            checker.decode(reply)
        except PayloadError as error:
            refused.append(Refusal(reply.member.partition_id, str(error)))
            continue
        good.append(reply)
    return good, refused


def _check_examples(num_examples: object, sender: str) -> None:
    whole = isinstance(num_examples, int) and not isinstance(num_examples, bool)
    if not whole or not 0 < num_examples <= MAX_EXAMPLES:  # type: ignore[operator]
        raise PayloadError(
            f"num_examples is {num_examples!r}; expected a whole number from 1 to {MAX_EXAMPLES}",
            sender=sender,
            field="num_examples",
        )


def _member(proxy: ClientProxy) -> Member:
    # A test, or a driver of its own, may hand over bare proxies: their id is then the partition.
    return proxy if isinstance(proxy, Member) else Member(proxy, int(proxy.cid))


def _refusal(failure: Failure) -> Refusal:
    if isinstance(failure, MemberFailedError):
        return Refusal(failure.partition_id, str(failure))
    if isinstance(failure, BaseException):
        return Refusal(None, f"{type(failure).__name__}: {failure}")
    proxy, result = failure
    member = _member(proxy)
    return Refusal(member.partition_id, f"{member}: {result.status.message or 'no reason given'}")
