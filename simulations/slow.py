"""Simulated stragglers: clients that take a multiple of the time that their training takes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.compat.common import recorddict_compat as compat

from zerofl_flwr.errors import SettingsError


def parse_slow(text: str) -> dict[int, float]:
    """Read ``"0:2,3:10"``: partition 0 takes twice as long, partition 3 ten times.

    Returns
    -------
    dict of int to float
        Factor, at least 1, by partition id.

    Raises
    ------
    SettingsError
        If an item is not PARTITION:FACTOR, a factor is below 1, or a partition comes twice.
    """
    factors: dict[int, float] = {}
    for item in text.split(","):
        partition, colon, factor = item.strip().partition(":")
        if not (colon and partition.isdecimal()):
            raise SettingsError(
                f"slow is {text!r}; expected PARTITION:FACTOR, not {item.strip()!r}"
            )
        try:
            value = float(factor)
        except ValueError:
            value = math.nan
        if not 1 <= value < math.inf:
            raise SettingsError(
                f"slow: the factor of partition {partition} is {factor!r}; it must be at least 1"
            )
        if int(partition) in factors:
            raise SettingsError(f"slow names partition {partition} twice")
        factors[int(partition)] = value
    return factors


def slow_mod(factors: Mapping[int, float]) -> Mod:
    """Build a Flower mod that makes clients slow.

    After a training message it waits until ``factor`` times the seconds that answering took have
    passed, and adds what it waited to the ``train_seconds`` that the client tells. Other messages,
    and other clients, take no longer.

    Parameters
    ----------
    factors : mapping of int to float
        Factor by partition id, as :func:`parse_slow` returns.
    """

    def slow(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        started = time.monotonic()
        reply = call_next(message, context)
        factor = factors.get(int(context.node_config["partition-id"]), 1.0)
        if message.metadata.message_type == MessageType.TRAIN and factor > 1:
            delay = (factor - 1) * (time.monotonic() - started)
            time.sleep(delay)
            _tell(reply, delay)
        return reply

    return slow


def _tell(reply: Message, delay: float) -> None:
    """Add seconds to a classic client's ``train_seconds``, if it tells them."""
    if reply.has_error():
        return
    result = compat.recorddict_to_fitres(reply.content, keep_input=False)
    seconds = result.metrics.get("train_seconds")
    if isinstance(seconds, float):
        result.metrics["train_seconds"] = seconds + delay
    reply.content = compat.fitres_to_recorddict(result, keep_input=False)
