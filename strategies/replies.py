"""Check the replies of a ZeroFL round, name what is wrong, and decode the good ones on demand."""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy

from strategies.answers import Answer, Refusal, check_examples, in_order
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.exchange import check_names, check_round, names_by_position
from zerofl_flwr.payload import Entry, MetaValue, NotSent, Payload, TensorSpec, Values, decode
from zerofl_flwr.settings import RoundPlan

_HEADER_BYTES_PER_LAYER = 4096
_HEADER_BYTES = 65536

Failure = tuple[ClientProxy, FitRes] | BaseException
Reply: TypeAlias = Answer[FitRes]


@dataclass(frozen=True, eq=False)
class Update:
    """What a reply holds: an entry per array of the model, and which arrays its client masks."""

    entries: list[Entry]
    masked: list[int]

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays' names: state_dict keys, or positions where the client does not know them."""
        return tuple(entry.name for entry in self.entries)


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
    names : sequence of str, optional
        State_dict keys of the arrays; None while nobody has told them.

    Attributes
    ----------
    names : sequence of str or None
        What a reply must name its arrays, unless it names them by position.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        plan: RoundPlan,
        pattern_sizes: Mapping[int, int] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.names = names
        self._specs = specs
        self._plan = plan
        self._pattern_sizes = dict(pattern_sizes or {})
        # No layer travels in more than its dense bytes; the rest is for headers.
        dense = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)
        self._max_bytes = dense + _HEADER_BYTES_PER_LAYER * len(specs) + _HEADER_BYTES

    def decode(self, reply: Reply) -> Update:
        """Decode one reply.

        Raises
        ------
        PayloadError
            Naming the client, the layer and the field.
        """
        sender = str(reply.member)
        check_examples(reply.result.num_examples, sender)
        payload = self._read(reply.result.parameters.tensors, sender)
        check_round(payload.meta.get("round"), self._plan, sender=sender)
        if self.names is not None:
            check_names([entry.name for entry in payload.entries], self.names, sender=sender)
        masked = self._masked_positions(payload.meta.get("masked"), sender)
        for position, entry in enumerate(payload.entries):
            self._check_encoding(position, entry, sender, is_masked=position in masked)
            self._check_content(entry, sender)
        return Update(payload.entries, masked)

    def agree_on_names(self, came: Iterable[tuple[str, ...]]) -> None:
        """Take the names that most replies gave, if none are known yet; of a tie, the first's.

        Names by position do not count. Two clients whose models register their layers in another
        order may send arrays of the same shapes: these must not be added up.
        """
        if self.names is not None:
            return
        by_position = tuple(names_by_position(len(self._specs)))
        votes = Counter(names for names in came if names != by_position)
        if votes:
            self.names = max(votes, key=votes.__getitem__)

    def _read(self, tensors: Sequence[bytes], sender: str) -> Payload:
        try:
            return decode(
                tensors,
                self._specs,
                sender=sender,
                pattern_sizes=self._pattern_sizes or None,
                max_bytes=self._max_bytes,
            )
        except PayloadError as error:
            if error.field != "header":
                raise
            raise PayloadError(
                f"{error.reason}; only a ZeroFLClient, or a client with the mod sparse_uplink, "
                "sends what ZeroFL can read",
                sender=sender,
                field="header",
            ) from error

    def _masked_positions(self, came: MetaValue | None, sender: str) -> list[int]:
        parts = came.split(",") if isinstance(came, str) and came else []
        count = len(self._specs)
        if not isinstance(came, str) or not all(
            part.isascii() and part.isdigit() and len(part) < 10 and int(part) < count
            for part in parts
        ):
            raise PayloadError(
                f"expected positions of masked arrays below {count}, got {reprlib.repr(came)}",
                sender=sender,
                field="masked",
            )
        positions = sorted({int(part) for part in parts})
        for position in positions:
            if not _is_float(self._specs[position].dtype):
                raise PayloadError(
                    f"array {position} is {self._specs[position].dtype}; only floats can be masked",
                    sender=sender,
                    field="masked",
                )
        return positions

    def _check_encoding(self, position: int, entry: Entry, sender: str, *, is_masked: bool) -> None:
        fault = ""
        if _is_float(self._specs[position].dtype) == isinstance(entry.data, NotSent):
            fault = "tensors of weights must be sent, and integer tensors left out"
        elif _is_partial(entry) and not is_masked:
            fault = "only a part came of an array that the reply does not name as masked"
        elif position in self._pattern_sizes and not isinstance(entry.data, Values):
            fault = "the mask is frozen: expected values at its positions only"
        if fault:
            raise PayloadError(fault, sender=sender, layer=entry.name, field="encoding")

    def _check_content(self, entry: Entry, sender: str) -> None:
        differences = _is_partial(entry) and self._plan.rule != "top-k-weights"
        expected = "difference" if differences else "weights"
        if entry.content != expected:
            raise PayloadError(
                f"expected {expected} under rule {self._plan.rule}, got {entry.content}",
                sender=sender,
                layer=entry.name,
                field="content",
            )


def keep_good(replies: Sequence[Reply], checker: ReplyChecker) -> tuple[list[Reply], list[Refusal]]:
    """Split replies into good and refused, both in partition order.

    Where no names of the model's arrays are known yet, the checker learns them here: see
    :meth:`ReplyChecker.agree_on_names`.

    Every reply is decoded here once only to be checked, and again when it is added: all shares
    must be known before the first addition, and keeping decoded replies would take memory that
    grows with their number.
    """
    decoded: list[tuple[Reply, tuple[str, ...]]] = []
    good: list[Reply] = []
    refused: list[Refusal] = []
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    for reply in replies:
        try:
            names = checker.decode(reply).names
        except PayloadError as error:
            refused.append(Refusal(reply.member.partition_id, str(error)))
            continue
        decoded.append((reply, known.setdefault(names, names)))  # equal names are kept once
    checker.agree_on_names(names for _, names in decoded)
    for reply, names in decoded:
        try:
            if checker.names is not None:
                check_names(names, checker.names, sender=str(reply.member))
        except PayloadError as error:
            refused.append(Refusal(reply.member.partition_id, str(error)))
            continue
        good.append(reply)
    return good, in_order(refused)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return np.issubdtype(dtype, np.floating)


def _is_partial(entry: Entry) -> bool:
    return entry.sparse or isinstance(entry.data, Values)
