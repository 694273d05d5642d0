"""Who the clients are, and which of them take part: by partition id, repeatable by seed.

Flower draws node ids at random and samples with the global ``random`` module, so that seeding alone
does not repeat a run. A :class:`Cohort` stands between a strategy and Flower's client manager: it
learns each node's partition id once, sorts by it, and samples from (seed, round, purpose).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Literal

import numpy as np
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from strategies.identity import ask_partitions
from strategies.member import Member
from strategies.metering import Meter
from zerofl_flwr.errors import RoundFailedError, SettingsError

Purpose = Literal["fit", "evaluate", "initialize"]
_PURPOSE_SEEDS: dict[Purpose, int] = {"fit": 1, "evaluate": 2, "initialize": 3}
_POLL_SECONDS = 0.1
_TELL_EVERY_SECONDS = 20
_PATIENCE_SECONDS = 86400
_OWN_PARTITIONS = (
    "give each SuperNode its own partition-id, and hand it to its client as partition_id"
)


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
        self._failed: set[str] = set()  # who sits out: no answer in this round, or no usable one
        self._started = False  # from then on, one node's fault must not end the run
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
        SettingsError
            If, among the first nodes, one tells no usable partition id or two tell the same. Who
            comes later with such an id sits out, with a warning.
        ClientFailedError
            If no node answers.

        Notes
        -----
        A node that comes later and tells a partition that is taken gets it only if its holder no
        longer answers, as after a restart, when Flower lists the old node id for a while yet.
        """
        if manager is not self._manager:
            self._started = False
        if manager is not self._manager or server_round != self._round:
            self._failed.clear()
        self._manager, self._round, self._purpose = manager, server_round, purpose
        self._meter = meter
        if not self._wait(self._min_available, timeout=_PATIENCE_SECONDS):
            raise RoundFailedError(
                f"round {server_round}: {self._min_available} nodes are needed, "
                f"{manager.num_available()} came within {_PATIENCE_SECONDS} seconds"
            )
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
        self._admit(self._claims(new, alone=len(new) == len(available)))

    def _claims(self, new: Sequence[ClientProxy], *, alone: bool) -> dict[ClientProxy, int]:
        """Ask who is new for the partition id; who tells no usable one sits out."""
        identities = dict(zip(new, ask_partitions(new), strict=True))
        failures = {p: answer for p, answer in identities.items() if not isinstance(answer, int)}
        unusable = [error for error in failures.values() if isinstance(error, SettingsError)]
        if unusable and not self._started:
            raise unusable[0]
        for failure in failures.values():
            log(WARNING, "%s; it is asked again before the next round", failure)
        if alone and len(failures) == len(new):
            raise failures[new[0]]  # nobody works: the fault is in the app, not in one node
        self._failed.update(proxy.cid for proxy in failures)
        return {p: answer for p, answer in identities.items() if isinstance(answer, int)}

    def _admit(self, claims: Mapping[ClientProxy, int]) -> None:
        """Make members of nodes, unless their partition is held by one that still answers."""
        owners = {member.partition_id: member.cid for member in self._members.values()}
        gone = self._who_is_gone([owners[i] for i in claims.values() if i in owners])
        for proxy, identity in claims.items():
            owner = owners.get(identity)
            if owner is not None and not self._started:
                raise SettingsError(
                    f"nodes {owner} and {proxy.cid} both say that they hold partition {identity}; "
                    f"{_OWN_PARTITIONS}"
                )
            if owner is not None and owner not in gone:
                log(
                    WARNING,
                    "node %s says that it holds partition %d, which node %s holds already: it "
                    "sits out, and is asked again before the next round; %s",
                    proxy.cid,
                    identity,
                    owner,
                    _OWN_PARTITIONS,
                )
                self._failed.add(proxy.cid)
                continue
            if owner is not None:
                log(
                    WARNING,
                    "node %s takes the place of node %s, which held partition %d before and no "
                    "longer answers",
                    proxy.cid,
                    owner,
                    identity,
                )
                del self._members[owner]
                self._replaced.add(owner)
            owners[identity] = proxy.cid
            self._members[proxy.cid] = Member(proxy, identity)
        self._started = bool(self._members) or self._started

    def _who_is_gone(self, cids: Sequence[str]) -> set[str]:
        """Ask members, by client id, whether they are still who they were."""
        asked = [self._members[cid] for cid in dict.fromkeys(cids)]
        answers = ask_partitions([member.proxy for member in asked])
        pairs = zip(asked, answers, strict=True)
        return {member.cid for member, answer in pairs if answer != member.partition_id}
