"""Bytes on the wire, measured on the serialized message, per client and round.

What the bytes are (:mod:`strategies.traffic`) is told of training messages. Training and evaluation
each have a :class:`Meter` of their own, so that neither is billed as the other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from strategies.traffic import NO_BYTES, Breakdown, break_down

Instructions = FitIns | EvaluateIns
Result = FitRes | EvaluateRes


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in one round: the message to it, and its reply.

    Parameters
    ----------
    downlink_bytes, uplink_bytes : int
        Of both.
    down, up : Breakdown
        What they are, in training; all zeros for the messages of a test.
    """

    downlink_bytes: int = 0
    uplink_bytes: int = 0
    down: Breakdown = NO_BYTES
    up: Breakdown = NO_BYTES


class Meter:
    """Collects the traffic of a round's training, or evaluation; safe to use from many threads."""

    def __init__(self) -> None:
        self._traffic: dict[int, Traffic] = {}
        self._lock = threading.Lock()
        # One message goes to many clients: it is measured once. Held here so that ids stay unique,
        # and with it the whole message: let go of a meter when its round is over.
        self._instructions: dict[int, tuple[Instructions, Traffic]] = {}

    def sent(self, partition_id: int, instructions: Instructions) -> None:
        """Note the message that goes down to a client."""
        with self._lock:
            known = self._instructions.get(id(instructions))
            if known is None:
                size = message_bytes(instructions)
                known = (instructions, Traffic(size, down=_breakdown(instructions, size)))
                self._instructions[id(instructions)] = known
            self._traffic[partition_id] = known[1]

    def received(self, partition_id: int, result: Result) -> None:
        """Note the reply that came up from a client."""
        size = message_bytes(result)
        up = _breakdown(result, size)
        with self._lock:
            before = self._traffic[partition_id]
            self._traffic[partition_id] = replace(before, uplink_bytes=size, up=up)

    def of(self, partition_id: int) -> Traffic:
        """Return a client's traffic; no uplink when it never replied."""
        with self._lock:
            return self._traffic.get(partition_id, Traffic())

    def traffic(self) -> dict[int, Traffic]:
        """Return the traffic of all clients that were sent something, by partition id."""
        with self._lock:
            return dict(sorted(self._traffic.items()))


def message_bytes(content: Instructions | Result) -> int:
    """Measure a message: the bytes of its serialized content, arrays and scalars.

    Parameters
    ----------
    content : FitIns, FitRes, EvaluateIns or EvaluateRes
        What goes down to, or came up from, a client.

    Returns
    -------
    int
        Bytes of the protobuf that Flower puts on the wire for the content. The envelope (ids,
        time stamps; about 200 bytes a message) and the transport's own framing are not in it.
    """
    if isinstance(content, EvaluateRes):
        return int(recorddict_to_proto(compat.evaluateres_to_recorddict(content)).ByteSize())
    tensors = content.parameters.tensors
    hollow = replace(
        content, parameters=Parameters([b""] * len(tensors), content.parameters.tensor_type)
    )
    if isinstance(hollow, FitIns):
        record = compat.fitins_to_recorddict(hollow, keep_input=True)
    elif isinstance(hollow, EvaluateIns):
        record = compat.evaluateins_to_recorddict(hollow, keep_input=True)
    else:
        record = compat.fitres_to_recorddict(hollow, keep_input=True)
    return _filled_bytes(recorddict_to_proto(record), [len(tensor) for tensor in tensors])


def _breakdown(content: Instructions | Result, size: int) -> Breakdown:
    if isinstance(content, FitIns | FitRes):
        return break_down(content.parameters.tensors, size)
    return NO_BYTES


def _filled_bytes(hollow: ProtoRecordDict, tensor_bytes: Sequence[int]) -> int:
    """Return the bytes of a message whose tensors are still empty, once they hold so many bytes.

    Serializing the tensors only to count them would cost more than decoding and summing them. A
    filled field adds its tag, its length and its bytes; each message around it grows by as much,
    and by the digits that its own length gains.
    """
    total = int(hollow.ByteSize())
    for item in hollow.items:
        if not item.HasField("array_record"):
            continue
        record = int(item.array_record.ByteSize())
        filled_record = record
        for entry in item.array_record.items:
            length = tensor_bytes[int(entry.key)] if entry.key.isdigit() else 0
            array, whole = int(entry.value.ByteSize()), int(entry.ByteSize())
            filled = array + (1 + _length_bytes(length) + length if length else 0)
            grown = _grown(whole, array, filled)
            filled_record = _grown(filled_record, whole, grown)
        whole = int(item.ByteSize())
        total = _grown(total, whole, _grown(whole, record, filled_record))
    return total


def _grown(outer: int, inner: int, grown_inner: int) -> int:
    """Return the size of a message after one inside it grew from ``inner`` to ``grown_inner``."""
    return outer + grown_inner - inner + _length_bytes(grown_inner) - _length_bytes(inner)


def _length_bytes(length: int) -> int:
    """Return the bytes of a length prefix: seven bits in each."""
    return max(1, (length.bit_length() + 6) // 7)
