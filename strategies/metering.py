"""Bytes on the wire, measured on the serialized message, per client and round."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from flwr.common import FitIns, FitRes
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat


@dataclass(frozen=True)
class Traffic:
    """Bytes of one client in one round: the message to it, and its reply."""

    downlink_bytes: int = 0
    uplink_bytes: int = 0


class Meter:
    """Collects the traffic of one round's training messages; safe to use from many threads."""

    def __init__(self) -> None:
        self._traffic: dict[int, Traffic] = {}
        self._lock = threading.Lock()
        # One FitIns goes to many clients: it is measured once. Held here so that ids stay unique,
        # and with it the whole message: let go of a meter when its round is over.
        self._instructions: dict[int, tuple[FitIns, int]] = {}

    def sent(self, partition_id: int, instructions: FitIns) -> None:
        """Note the message that goes down to a client."""
        with self._lock:
            known = self._instructions.get(id(instructions))
            if known is None:
                known = (instructions, message_bytes(instructions))
                self._instructions[id(instructions)] = known
            self._traffic[partition_id] = Traffic(known[1], 0)

    def received(self, partition_id: int, result: FitRes) -> None:
        """Note the reply that came up from a client."""
        uplink_bytes = message_bytes(result)
        with self._lock:
            downlink_bytes = self._traffic[partition_id].downlink_bytes
            self._traffic[partition_id] = Traffic(downlink_bytes, uplink_bytes)

    def of(self, partition_id: int) -> Traffic:
        """Return a client's traffic; no uplink when it never replied."""
        with self._lock:
            return self._traffic.get(partition_id, Traffic())


def message_bytes(content: FitIns | FitRes) -> int:
    """Measure a training message: the bytes of its serialized content, arrays and scalars.

    Parameters
    ----------
    content : FitIns or FitRes
        What goes down to, or came up from, a client.

    Returns
    -------
    int
        Bytes of the protobuf that Flower puts on the wire for the content. The envelope (ids,
        time stamps; about 200 bytes a message) and the transport's own framing are not in it.
    """
    if isinstance(content, FitIns):
        record = compat.fitins_to_recorddict(content, keep_input=True)
    else:
        record = compat.fitres_to_recorddict(content, keep_input=True)
    return int(recorddict_to_proto(record).ByteSize())
