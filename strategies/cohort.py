"""Who the clients are, and which of them take part: by partition id, repeatable by seed.

Flower draws node ids at random and samples with the global ``random`` module, so that seeding alone
does not repeat a run. A :class:`Cohort` stands between a strategy and Flower's client manager: it
learns each node's partition id once, sorts by it, and samples from (seed, round, purpose).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING
from typing import Literal, TypeVar

import numpy as np
from flwr.common import (
    Code,
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
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from strategies.metering import Meter
from zerofl_flwr.errors import ClientFailedError, RoundFailedError, SettingsError

_Result = TypeVar("_Result")
Purpose = Literal["fit", "evaluate", "initialize"]
_PURPOSE_SEEDS: dict[Purpose, int] = {"fit": 1, "evaluate": 2, "initialize": 3}
_POLL_SECONDS = 0.1
_TELL_EVERY_SECONDS = 20
_PATIENCE_SECONDS = 86400
_PROPERTY_WORKERS = 16


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
        meter = self.meter
        if meter is None:
            return self._named(lambda: self.proxy.fit(ins, timeout, group_id))
        return self._named(lambda: self._metered(meter, ins, timeout, group_id))

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        """Evaluate."""
        return self._named(lambda: self.proxy.evaluate(ins, timeout, group_id))

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

    def _metered(
        self, meter: Meter, ins: FitIns, timeout: float | None, group_id: int | None
    ) -> FitRes:
        meter.sent(self.partition_id, ins)
        result = self.proxy.fit(ins, timeout, group_id)
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


class Cohort(ClientManager):
    """A view of Flower's client manager that is ordered by partition id and samples by seed.

    Parameters
    ----------
    seed : int
        Seed of the run.
    min_available : int
        Nodes to wait for before the first sampling.
    """

    def __init__(self, seed: int, min_available: int = 1) -> None:
        self._seed = seed
        self._min_available = min_available
        self._manager: ClientManager | None = None
        self._members: dict[str, Member] = {}
        self._draws = 0
        self._replaced: set[str] = set()
        self._failed: set[str] = set()  # who did not answer in this round
        self._round = 0
        self._purpose: Purpose = "fit"
        self._meter: Meter | None = None

    def at(
        self,
        manager: ClientManager,
        server_round: int,
        purpose: Purpose,
        meter: Meter | None = None,
    ) -> Cohort:
        """Point the cohort at a round, and bring its members up to date.

        Raises
        ------
        RoundFailedError
            If fewer nodes than the cohort needs came within a day, Flower's own patience.
        SettingsError, ClientFailedError
            If a node tells no usable partition id.
        """
        self._manager, self._round, self._purpose = manager, server_round, purpose
        self._meter = meter
        if not self._wait(self._min_available, timeout=_PATIENCE_SECONDS):
            raise RoundFailedError(
                f"round {server_round}: {self._min_available} nodes are needed, "
                f"{manager.num_available()} came within {_PATIENCE_SECONDS} seconds"
            )
        self._failed.clear()
        self._draws = 0
        self._refresh()
        for member in self._members.values():
            member.meter = None  # it holds its round's model, and would outlive it here
        return self

    def members(self) -> list[Member]:
        """Return everybody available, in partition order."""
        return sorted(self._members.values(), key=lambda member: member.partition_id)

    def num_available(self) -> int:
        """Return how many clients are available."""
        return len(self._members)

    def all(self) -> dict[str, ClientProxy]:
        """Return the available clients by Flower's client id, in partition order."""
        return {member.cid: member for member in self.members()}

    def wait_for(self, num_clients: int, timeout: int = _PATIENCE_SECONDS) -> bool:
        """Wait until at least ``num_clients`` nodes are there; False when time ran out."""
        reached = self._wait(num_clients, timeout)
        self._refresh()
        return reached

    def sample(
        self,
        num_clients: int,
        min_num_clients: int | None = None,
        criterion: Criterion | None = None,
    ) -> list[ClientProxy]:
        """Draw clients without replacement, from (seed, round, purpose), in partition order.

        Returns
        -------
        list of ClientProxy
            Empty when fewer than ``num_clients`` fit the criterion, as Flower's own manager does.
        """
        self.wait_for(num_clients if min_num_clients is None else min_num_clients)
        candidates = [m for m in self.members() if criterion is None or criterion.select(m)]
        if num_clients > len(candidates):
            log(
                WARNING,
                "sampling failed: %d clients were asked for and %d are available",
                num_clients,
                len(candidates),
            )
            return []
        generator = np.random.default_rng(
            [
                self._seed & 0xFFFFFFFFFFFFFFFF,
                self._round,
                _PURPOSE_SEEDS[self._purpose],
                *([self._draws] if self._draws else []),  # a strategy may draw again in a round
            ]
        )
        self._draws += 1
        chosen = sorted(generator.choice(len(candidates), size=num_clients, replace=False))
        for index in chosen:
            candidates[index].meter = self._meter
        return [candidates[index] for index in chosen]

    def register(self, client: ClientProxy) -> bool:
        """Pass a registration on to Flower's manager."""
        return self._underlying().register(client)

    def unregister(self, client: ClientProxy) -> None:
        """Pass a removal on to Flower's manager."""
        self._underlying().unregister(client)

    def _underlying(self) -> ClientManager:
        if self._manager is None:
            raise SettingsError("the cohort has no client manager yet; call at() first")
        return self._manager

    def _wait(self, num_clients: int, timeout: float) -> bool:
        # Flower refreshes its list of nodes every 5 seconds, or at once when it is asked.
        started = time.monotonic()
        manager, told = self._underlying(), 0
        while (there := manager.num_available()) < num_clients:
            waited = time.monotonic() - started
            if waited > timeout:
                return False
            if waited > (told + 1) * _TELL_EVERY_SECONDS:
                told += 1
                log(WARNING, "waiting for %d nodes, %d are there", num_clients, there)
            time.sleep(_POLL_SECONDS)
        return True

    def _refresh(self) -> None:
        """Drop who left, and ask who is new for the partition id."""
        available = dict(self._underlying().all())  # Flower changes it from another thread
        # By object, not by id: who left and came back may hold other data.
        self._members = {
            cid: member
            for cid, member in self._members.items()
            if available.get(cid) is member.proxy
        }
        # A node that was replaced may stay listed until Flower notices that it is gone.
        self._replaced &= available.keys()
        known = self._failed.union(self._members, self._replaced)
        new = [proxy for cid, proxy in available.items() if cid not in known]
        if not new:
            return
        with ThreadPoolExecutor(max_workers=_PROPERTY_WORKERS) as executor:
            identities = list(executor.map(_partition_id_or_failure, new))
        newcomers = {proxy.cid for proxy in new}
        owners = {member.partition_id: member.cid for member in self._members.values()}
        failures = [answer for answer in identities if isinstance(answer, ClientFailedError)]
        for failure in failures:
            log(WARNING, "%s; it is asked again before the next round", failure)
        if len(failures) == len(available):
            raise failures[0]  # nobody works: the fault is in the app, not in one node
        for proxy, identity in zip(new, identities, strict=True):
            if isinstance(identity, ClientFailedError):
                self._failed.add(proxy.cid)
                continue
            if identity is None:
                log(
                    WARNING,
                    "node %s tells no partition-id (its --node-config, or get_properties): it is "
                    "known by its node id, and runs with it do not repeat by seed",
                    proxy.cid,
                )
                identity = int(proxy.cid)
            owner = owners.get(identity)
            if owner is not None and owner in self._members and owner not in newcomers:
                log(
                    WARNING,
                    "node %s takes the place of node %s, which held partition %d before",
                    proxy.cid,
                    owner,
                    identity,
                )
                del self._members[owner]
                self._replaced.add(owner)
            elif owner is not None:
                raise SettingsError(
                    f"nodes {owner} and {proxy.cid} both say that they hold partition {identity}; "
                    "give each SuperNode its own partition-id, and hand it to "
                    "ZeroFLClient(partition_id=...)"
                )
            owners[identity] = proxy.cid
            self._members[proxy.cid] = Member(proxy, identity)


def _partition_id_or_failure(proxy: ClientProxy) -> int | ClientFailedError | None:
    """Ask a node who it is; None when it has no answer, an error when asking failed."""
    try:
        result = proxy.get_properties(GetPropertiesIns({}), timeout=None, group_id=None)
    except Exception as error:  # whatever it was, the other nodes can go on
        return ClientFailedError(f"node {proxy.cid} did not tell its properties: {error}")
    identity = result.properties.get("partition-id")
    if result.status.code != Code.OK or identity is None:
        return None
    if isinstance(identity, bool) or not isinstance(identity, int) or identity < 0:
        raise SettingsError(f"node {proxy.cid} tells partition-id {identity!r}; expected 0, 1, ...")
    return identity
