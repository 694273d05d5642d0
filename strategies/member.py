"""A client that takes part: Flower's proxy with a partition id, metered, its failures named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flwr.common import (
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    ReconnectIns,
)
from flwr.server.client_proxy import ClientProxy

from strategies.metering import Instructions, Meter
from zerofl_flwr.errors import ClientFailedError

_Result = TypeVar("_Result")
_Answer = TypeVar("_Answer", FitRes, EvaluateRes)


class Member(ClientProxy):
    """A client with a partition id: forwards to Flower's proxy, meters bytes, names failures.

    Parameters
    ----------
    proxy : ClientProxy
        Flower's own proxy.
    partition_id : int
        Who the client is.
    """

    def __init__(self, proxy: ClientProxy, partition_id: int) -> None:
        super().__init__(proxy.cid)
        self.node_id = getattr(proxy, "node_id", 0)
        self.properties = proxy.properties
        self.proxy = proxy
        self.partition_id = partition_id
        self.meter: Meter | None = None

    def __str__(self) -> str:
        """Return the name used in errors and reports."""
        return f"client {self.partition_id}"

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Train; the size of both messages goes to the meter."""
        return self._named(
            lambda: self._metered(ins, lambda: self.proxy.fit(ins, timeout, group_id))
        )

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        """Evaluate; the size of both messages goes to the meter."""
        return self._named(
            lambda: self._metered(ins, lambda: self.proxy.evaluate(ins, timeout, group_id))
        )

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        """Ask for the client's properties."""
        return self._named(lambda: self.proxy.get_properties(ins, timeout, group_id))

    def get_parameters(
        self, ins: GetParametersIns, timeout: float | None, group_id: int | None
    ) -> GetParametersRes:
        """Ask for the client's current weights."""
        return self._named(lambda: self.proxy.get_parameters(ins, timeout, group_id))

    def reconnect(
        self, ins: ReconnectIns, timeout: float | None, group_id: int | None
    ) -> DisconnectRes:
        """Disconnect and perhaps reconnect later."""
        return self.proxy.reconnect(ins, timeout, group_id)

    def _metered(self, ins: Instructions, call: Callable[[], _Answer]) -> _Answer:
        meter = self.meter
        if meter is None:
            return call()
        meter.sent(self.partition_id, ins)
        result = call()
        meter.received(self.partition_id, result)
        return result

    def _named(self, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except Exception as error:  # whatever went wrong, the round must know whose it was
            reason = str(error) or type(error).__name__
            raise MemberFailedError(self.partition_id, reason) from error


class MemberFailedError(ClientFailedError):
    """A client's error, or missing reply, with the partition id that Flower leaves out."""

    def __init__(self, partition_id: int, reason: str) -> None:
        self.partition_id = partition_id
        self.reason = reason
        super().__init__(f"client {partition_id}: {reason}")
