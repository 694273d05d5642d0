"""Keeps a run of AdaSplit within its budget: what was spent, and who can afford what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from strategies.adasplit_needs import NOTHING, Needs
from strategies.budget import Budget
from strategies.exchange_costs import Costs, ForetoldExchange
from strategies.metering import Traffic
from strategies.state import State
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

if TYPE_CHECKING:  # which itself needs to know whose turn it is
    from strategies.adasplit_report import AdaSplitClientReport


class Ledger:
    """What each client, and the server for it, have spent.

    Those are the bytes that were measured, of replies that were refused too, and the multiply-adds
    of what was trained. A client that was asked and did not deliver is charged with its own work,
    which it may have done.

    Parameters
    ----------
    budget : Budget
        The limits.
    needs : Needs
        Of the run's clients.
    """

    def __init__(self, budget: Budget, needs: Needs) -> None:
        self.budget = budget
        self.needs = needs
        self._spent: dict[int, Costs] = {}

    @property
    def total(self) -> Costs:
        """What was spent altogether."""
        return sum(self._spent.values(), NOTHING)

    def spent(self, client: int) -> Costs:
        """Return what a client has spent, and the server on its uploads."""
        return self._spent.get(client, NOTHING)

    def charge(
        self,
        asked: Mapping[int, int],
        traffic: Mapping[int, Traffic],
        reports: Iterable[AdaSplitClientReport],
    ) -> None:
        """Book a round.

        Parameters
        ----------
        asked : mapping of int to int
            The work of each client that was asked, by partition id, if it does all of it.
        traffic : mapping of int to Traffic
            Bytes of the messages, by partition id.
        reports : iterable of AdaSplitClientReport
            What came of it.
        """
        steps = self.needs.costs.steps
        delivered: dict[int, Costs] = {}
        for report in reports:
            client = report.partition_id
            if client is None or (report.failure and not report.num_examples):
                continue
            own = report.num_examples * steps.own.total
            again = report.gradient_samples * steps.again.total
            delivered[client] = Costs(0, own + again, report.server_samples * steps.server.total)
            if report.num_examples:
                self.needs.took(client)
        for client, work in asked.items():
            messages = traffic.get(client, Traffic())
            size = messages.downlink_bytes + messages.uplink_bytes
            done = delivered.get(client, Costs(0, work))
            self._spent[client] = self.spent(client) + done + Costs(size)
            if client not in delivered:
                self.needs.missed(client)

    def state_arrays(self) -> State:
        """Return the books: ``clients`` (n,), ``spent`` (n, 3) and ``taken`` (n,), in int64."""
        clients = sorted(self._spent)
        spent = [
            (costs.bytes, costs.client_ops, costs.server_ops) for costs in map(self.spent, clients)
        ]
        return {
            "clients": np.array(clients, np.int64),
            "spent": np.array(spent, np.int64).reshape(-1, 3),
            "taken": np.array([self.needs.taken.get(client, 0) for client in clients], np.int64),
        }

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is something else; then nothing has changed.
        """
        try:
            clients, taken = state["clients"].tolist(), state["taken"].tolist()
            spent = {
                client: Costs(*row)
                for client, row in zip(clients, state["spent"].tolist(), strict=True)
            }
            self.needs.taken = dict(zip(clients, taken, strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"this is no state of AdaSplit's budget: {error!r}; a run cannot be given one when "
                "it is resumed"
            ) from error
        self._spent = spent


class RoundBudget:
    """Who can afford what in one round.

    Parameters
    ----------
    ledger : Ledger, optional
        The books; None: everybody can afford everything.
    server_round : int
        From 1.

    Attributes
    ----------
    work : dict of int to int
        Multiply-adds of each client for which something was reserved, by partition id.
    """

    def __init__(self, ledger: Ledger | None, server_round: int) -> None:
        self.work: dict[int, int] = {}
        self._ledger = ledger
        self._round = server_round
        self._reserved: dict[int, Costs] = {}
        self._total = NOTHING
        if ledger is not None:
            self._reserved = ledger.needs.committed(server_round)
            self._total = ledger.total + sum(self._reserved.values(), NOTHING)

    def is_worth_it(self, client: int) -> bool:
        """Say whether an exchange without an upload does anything for a client."""
        return self._ledger is None or self._ledger.needs.trains_without_upload(client)

    def can_take(self, client: int, *, upload: bool) -> bool:
        """Say whether there is enough left for a client's exchange, and for what it leads to."""
        if self._ledger is None:
            return True
        return self._is_left(client, self._ledger.needs.need(client, self._round, upload=upload))

    def take(self, client: int, *, upload: bool) -> bool:
        """Reserve a client's exchange, and what it leads to, if there is enough left for it."""
        if self._ledger is None:
            return True
        needs = self._ledger.needs
        exchange = needs.exchange(client, self._round, upload=upload)
        return self._take(client, exchange, needs.need(client, self._round, upload=upload))

    def take_finish(self, client: int) -> bool:
        """Reserve a client's part in a finishing round, if there is enough left for it."""
        if self._ledger is None:
            return True
        exchange = self._ledger.needs.finish(client, self._round)
        return self._take(client, exchange, self._ledger.needs.costs.of(exchange))

    def _take(self, client: int, exchange: ForetoldExchange, need: Costs) -> bool:
        if self._ledger is None or not self._is_left(client, need):
            return False
        self._total += need - self._reserved.get(client, NOTHING)
        self._reserved[client] = need
        self.work[client] = self._ledger.needs.costs.client_ops(exchange)
        return True

    def _is_left(self, client: int, need: Costs) -> bool:
        if self._ledger is None:
            return True
        budget, own = self._ledger.budget, self._ledger.spent(client) + need
        together = self._total - self._reserved.get(client, NOTHING) + need
        return (
            own.bytes <= budget.bytes_of(client)
            and own.client_ops <= budget.multiply_adds_of(client)
            and together.bytes <= (math.inf if budget.bytes is None else budget.bytes)
            and together.ops <= (math.inf if budget.multiply_adds is None else budget.multiply_adds)
        )


class Shares:
    """Who of some clients is asked, and who of these uploads: as far as a budget allows.

    Attributes
    ----------
    picks : list of int
        Who uploads, in the order of picking.
    asked : set of int
        Who takes part.
    held_back : set of int
        Whom the budget kept from uploading, or from taking part at all.
    """

    def __init__(self) -> None:
        self.picks: list[int] = []
        self.asked: set[int] = set()
        self.held_back: set[int] = set()

    def pick(self, ranking: Sequence[int], count: int, budget: RoundBudget) -> None:
        """Pick so many, in this order, of those that can afford an upload."""
        for client in ranking:
            if len(self.picks) == count:
                return
            if budget.take(client, upload=True):
                self.picks.append(client)
            else:
                self.held_back.add(client)

    def fill(self, ranking: Sequence[int], count: int, budget: RoundBudget) -> None:
        """Ask everybody who can afford the round, and pick so many of them, both in this order.

        Who trains without an upload is asked first, and uploads are picked of what that leaves.
        Where an upload is all that training is for, who cannot afford it is not asked.
        """
        self.asked.update(
            client
            for client in ranking
            if budget.is_worth_it(client) and budget.take(client, upload=False)
        )
        able = [c for c in ranking if c in self.asked or not budget.is_worth_it(c)]
        self.pick(able, count, budget)
        self.asked.update(self.picks)
        for client in ranking:
            if client in self.asked:
                continue
            useless = client in self.held_back or budget.is_worth_it(client)
            if not useless and budget.take(client, upload=False):
                self.asked.add(client)
            else:
                self.held_back.add(client)
