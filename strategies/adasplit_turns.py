"""Who trains in a round of AdaSplit, and who of them uploads activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from flwr.common import FitIns
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.plans import ExchangePlan
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_budget import Ledger, RoundBudget, Shares
from strategies.adasplit_clients import KnownClients
from strategies.adasplit_downlink import Asked, Downlink
from strategies.adasplit_needs import Needs, check_batch_sizes
from strategies.adasplit_options import Participation, share_of
from strategies.adasplit_relay import Relay
from strategies.adasplit_sharing import FINISH, Sharing
from strategies.budget import Budget
from strategies.cohort import Cohort
from strategies.exchange_costs import ExchangeCosts
from strategies.member import Member
from strategies.state import Resumable
from zerofl_flwr.errors import SettingsError

_PICK_STREAM = 4  # sets random picks apart from other draws of the same seed and round


@dataclass(frozen=True)
class Turn:
    """Who takes part in a round.

    Parameters
    ----------
    phase : str
        ``"local"``, ``"global"``, or ``"finish"`` if nobody trains on a batch.
    members : list of Member
        Who trains, in partition order; their messages are metered.
    picks : frozenset of int
        Partition ids of those who upload activations; empty in the local phase.
    terms : mapping of int to (float, float)
        Exploitation and exploration of the orchestrator's score before the round, for each member;
        empty in the local phase.
    begins : frozenset of int
        Partition ids of those who are sent the shared client part.
    shares : bool
        Whether all upload their client part.
    held_back : frozenset of int
        Partition ids of those whom the budget kept from uploading, or from taking part at all.
    work : mapping of int to int
        With a budget, the multiply-adds that each member is to do.
    """

    phase: str
    members: list[Member]
    picks: frozenset[int] = frozenset()
    terms: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    begins: frozenset[int] = frozenset()
    shares: bool = False
    held_back: frozenset[int] = frozenset()
    work: Mapping[int, int] = field(default_factory=dict)

    @property
    def finishes(self) -> bool:
        """Whether it only brings gradients, and fetches client parts."""
        return self.phase == FINISH

    def write(
        self, downlink: Downlink, client: int, learning_rate: float
    ) -> tuple[ExchangePlan, FitIns]:
        """Write a member's message."""
        return downlink.exchange(
            client,
            learning_rate,
            upload=client in self.picks,
            begins=client in self.begins,
            shares=self.shares,
            finishes=self.finishes,
        )

    def write_all(
        self, downlink: Downlink, learning_rate: float, asked: Asked[ExchangePlan]
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Write everybody's message, and note who is asked what."""
        pairs: list[tuple[ClientProxy, FitIns]] = []
        for member in self.members:
            plan, message = self.write(downlink, member.partition_id, learning_rate)
            asked.plans[member.partition_id] = plan
            pairs.append((member, message))
        asked.members = self.members
        return pairs

    def terms_of(self, client: int | None) -> tuple[float, float]:
        """Return a client's terms; NaN where there are none."""
        return (math.nan, math.nan) if client is None else self.terms.get(client, (math.nan,) * 2)


class Turns:
    """Draws the clients of each round, and picks among them (AdaSplit, arXiv 2112.01637).

    Parameters
    ----------
    settings : AdaSplitSettings
        ``selection``, ``eta`` and those of shared client parts count here.
    participation : Participation
        How many of the available clients train in a round, and how many rounds there are.
    orchestrator : Orchestrator
        Makes the picks of ``selection="ucb"``, and gets to know everybody who could be picked.
    seed : int
        Random picks derive from (seed, round).

    Attributes
    ----------
    relay : Relay
        Whose turn it is, where client parts are relayed.
    sharing : Sharing
        Whether client parts are shared yet, and who takes part until then.
    ledger : Ledger or None
        Says who can afford what; None: everybody everything.
    """

    def __init__(
        self,
        settings: AdaSplitSettings,
        participation: Participation,
        orchestrator: Orchestrator,
        seed: int,
    ) -> None:
        self.relay = Relay()
        self.sharing = Sharing(settings, participation.rounds)
        self.ledger: Ledger | None = None
        self._settings = settings
        self._participation = participation
        self._orchestrator = orchestrator
        self._seed = seed

    def open_ledger(
        self,
        budget: Budget | None,
        batch_sizes: Mapping[int, Sequence[int]] | None,
        clients: KnownClients,
        make_costs: Callable[[], ExchangeCosts],
    ) -> None:
        """Keep within a budget, if there is one.

        Parameters
        ----------
        budget, batch_sizes
            As of the strategy.
        clients : KnownClients
            Whose state is that of which round, and which gradients wait.
        make_costs : callable
            Makes the costs of the run's exchanges.

        Raises
        ------
        SettingsError
            If only one of `budget` and `batch_sizes` is given, the sizes cannot be, or the budget
            names a client that they do not.
        """
        if budget is None and batch_sizes is None:
            return
        if budget is None or batch_sizes is None:
            raise SettingsError("budget and batch_sizes are of use together: give both or none")
        check_batch_sizes(batch_sizes)
        budget.check_clients(batch_sizes)
        rounds = self._participation.rounds
        needs = Needs(make_costs(), batch_sizes, self._settings, rounds, clients, self.sharing)
        self.ledger = Ledger(budget, needs)

    def parts(self) -> dict[str, Resumable]:
        """Return what has to be saved, by its name in the strategy's state."""
        parts: dict[str, Resumable] = {"relay": self.relay, "sharing": self.sharing}
        return parts if self.ledger is None else {**parts, "budget": self.ledger}

    def next(self, cohort: Cohort, server_round: int, phase: str) -> Turn:
        """Choose a round's clients.

        Parameters
        ----------
        cohort : Cohort
            At this round.
        server_round : int
            From 1.
        phase : str
            ``"local"`` or ``"global"``.

        Returns
        -------
        Turn
            Without members if not enough clients are there, or the budget holds all back.

        Raises
        ------
        SettingsError
            If there is a budget, and a client of which it knows nothing.
        """
        if self.ledger is not None:
            self.ledger.needs.check_clients(member.partition_id for member in cohort.members())
        if self.sharing.finishes(server_round):
            if (turn := self._finishing(cohort, server_round)).members:
                return turn
            self.sharing.begin()  # nobody is left whose part could be fetched
        is_global, budget = phase == "global", RoundBudget(self.ledger, server_round)
        draw = self._relayed if self._settings.client_weights == "relayed" else self._drawn
        there, shares = draw(cohort, budget, server_round, is_global)
        members = [member for member in there if member.partition_id in shares.asked]
        clients = [member.partition_id for member in members]
        terms: dict[int, tuple[float, float]] = {}
        if is_global and clients:
            known = self._orchestrator.terms(clients)
            pairs = zip(known.exploitation.tolist(), known.exploration.tolist(), strict=True)
            terms = dict(zip(clients, pairs, strict=True))
        return Turn(
            phase,
            members,
            frozenset(shares.picks),
            terms,
            begins=self.sharing.begins(clients),
            shares=self.sharing.shares(server_round, shares.picks),
            held_back=frozenset(shares.held_back),
            work=budget.work,
        )

    def _finishing(self, cohort: Cohort, server_round: int) -> Turn:
        budget = RoundBudget(self.ledger, server_round)
        there = self._still_there(cohort, self.sharing.samples)
        members = [member for member in there if budget.take_finish(member.partition_id)]
        held_back = frozenset(m.partition_id for m in there if m not in members)
        return Turn(FINISH, members, shares=True, held_back=held_back, work=budget.work)

    def _drawn(
        self, cohort: Cohort, budget: RoundBudget, server_round: int, is_global: bool
    ) -> tuple[list[Member], Shares]:
        """Go on with the period's clients, or draw those of the next; and pick among them."""
        members = self._still_there(cohort, self.sharing.members)
        goes_on = bool(members)
        if not goes_on:
            participation = self._participation
            number = share_of(cohort.num_available(), participation.fraction_fit)
            number = max(number, participation.min_fit)
            members = cast(list[Member], cohort.sample(number, participation.min_available))
            self.sharing.begin([member.partition_id for member in members])
        shares = Shares()
        if members:
            clients = [member.partition_id for member in members]
            ranking = self._ranking(clients, server_round) if is_global else clients
            shares.fill(ranking, self._settings.uploads(len(clients)) if is_global else 0, budget)
        if not goes_on:
            self.sharing.begin([m.partition_id for m in members if m.partition_id in shares.asked])
        elif not shares.asked:
            self.sharing.idles()
        return members, shares

    def _relayed(
        self, cohort: Cohort, budget: RoundBudget, server_round: int, is_global: bool
    ) -> tuple[list[Member], Shares]:
        """Go on with the turn of a client, or with the next client that can afford one."""
        passed_over: set[int] = set()

        def pick(candidates: Sequence[int]) -> list[int]:
            of_pass, trial = Shares(), RoundBudget(self.ledger, server_round)
            of_pass.pick(
                self._ranking(candidates, server_round),
                self._settings.uploads(len(candidates)),
                trial,
            )
            passed_over.update(of_pass.held_back)
            return sorted(of_pass.picks)

        shares, picker = Shares(), pick if is_global else None
        available = [member.partition_id for member in cohort.members()]
        if members := self._still_there(cohort, self.sharing.members):
            client = members[0].partition_id
            uploads = self.relay.goes_on(client, available, picker)
            shares.fill([client], int(uploads), budget)
            shares.held_back |= passed_over
            if not shares.asked:
                self.sharing.idles()
            return members, shares
        must_upload = is_global and not self._settings.local_loss
        for client in self.relay.order(available):
            if budget.can_take(client, upload=must_upload):
                break
            shares.held_back.add(client)
        able = [client for client in available if client not in shares.held_back]
        if not able:
            return [], shares
        client, uploads = self.relay.next(able, picker)
        members = self._still_there(cohort, [client])
        self.sharing.begin([client])
        shares.fill([client], int(uploads), budget)
        shares.held_back |= passed_over
        return members, shares

    def _still_there(self, cohort: Cohort, clients: Collection[int]) -> list[Member]:
        """Return the members of the cohort among some clients, their messages metered."""
        while there := [m for m in cohort.members() if m.partition_id in clients]:
            only = _Only({member.partition_id for member in there})
            drawn = cohort.sample(len(there), self._participation.min_available, only)
            if drawn:  # otherwise somebody left meanwhile
                return cast(list[Member], drawn)
        return []

    def _ranking(self, candidates: Sequence[int], server_round: int) -> list[int]:
        """Order clients by who is to upload first."""
        # Always asked: whoever could be picked has to be known to it when losses come.
        ranking = self._orchestrator.rank(candidates)
        if self._settings.selection != "random":
            return ranking
        generator = np.random.default_rng((self._seed, _PICK_STREAM, server_round))
        ids, count = np.sort(np.array(candidates)), self._settings.uploads(len(candidates))
        chosen = generator.choice(ids, size=count, replace=False)
        others = generator.permutation(np.setdiff1d(ids, chosen))
        return [int(client) for client in (*chosen, *others)]


class _Only(Criterion):
    """Lets some clients through."""

    def __init__(self, partition_ids: Collection[int]) -> None:
        self._partition_ids = partition_ids

    def select(self, client: ClientProxy) -> bool:
        """Say whether this is one of them."""
        return getattr(client, "partition_id", None) in self._partition_ids
