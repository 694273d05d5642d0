"""Who trains in a round of AdaSplit, and who of them uploads activations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from flwr.common import FitIns
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.plans import ExchangePlan
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_downlink import Downlink
from strategies.adasplit_options import Participation, share_of
from strategies.adasplit_relay import Pick, Relay
from strategies.adasplit_sharing import FINISH, Sharing
from strategies.cohort import Cohort
from strategies.member import Member

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
    """

    phase: str
    members: list[Member]
    picks: frozenset[int] = frozenset()
    terms: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    begins: frozenset[int] = frozenset()
    shares: bool = False

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
        self._settings = settings
        self._participation = participation
        self._orchestrator = orchestrator
        self._seed = seed

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
            Without members if not enough clients are there.
        """
        if self.sharing.finishes(server_round):
            if members := self._still_there(cohort, self.sharing.samples):
                return Turn(FINISH, members, shares=True)
            self.sharing.begin()  # nobody is left whose part could be fetched

        def pick(candidates: Sequence[int]) -> list[int]:
            return self._pick(candidates, server_round)

        draw = self._relayed if self._settings.client_weights == "relayed" else self._drawn
        members, picks = draw(cohort, pick if phase == "global" else None)
        clients = [member.partition_id for member in members]
        terms: dict[int, tuple[float, float]] = {}
        if phase == "global":
            known = self._orchestrator.terms(clients)
            pairs = zip(known.exploitation.tolist(), known.exploration.tolist(), strict=True)
            terms = dict(zip(clients, pairs, strict=True))
        return Turn(
            phase,
            members,
            frozenset(picks),
            terms,
            begins=self.sharing.begins(clients),
            shares=self.sharing.shares(server_round, picks),
        )

    def _drawn(self, cohort: Cohort, pick: Pick | None) -> tuple[list[Member], list[int]]:
        """Go on with the period's clients, or draw those of the next; and pick among them."""
        members = self._still_there(cohort, self.sharing.members)
        if not members:
            participation = self._participation
            number = share_of(cohort.num_available(), participation.fraction_fit)
            number = max(number, participation.min_fit)
            members = cast(list[Member], cohort.sample(number, participation.min_available))
            self.sharing.begin([member.partition_id for member in members])
        clients = [member.partition_id for member in members]
        return members, pick(clients) if pick is not None and clients else []

    def _relayed(self, cohort: Cohort, pick: Pick | None) -> tuple[list[Member], list[int]]:
        """Go on with the turn of a client, or with the next client."""
        available = [member.partition_id for member in cohort.members()]
        if not available:
            return [], []
        if members := self._still_there(cohort, self.sharing.members):
            client = members[0].partition_id
            uploads = self.relay.goes_on(client, available, pick)
        else:
            client, uploads = self.relay.next(available, pick)
            members = self._still_there(cohort, [client])
            self.sharing.begin([client])
        return members, [client] if uploads else []

    def _still_there(self, cohort: Cohort, clients: Collection[int]) -> list[Member]:
        """Return the members of the cohort among some clients, their messages metered."""
        while there := [m for m in cohort.members() if m.partition_id in clients]:
            only = _Only({member.partition_id for member in there})
            drawn = cohort.sample(len(there), self._participation.min_available, only)
            if drawn:  # otherwise somebody left meanwhile
                return cast(list[Member], drawn)
        return []

    def _pick(self, candidates: Sequence[int], server_round: int) -> list[int]:
        count = self._settings.uploads(len(candidates))
        # Always asked: whoever could be picked has to be known to it when losses come.
        best = self._orchestrator.pick(candidates, count)
        if self._settings.selection == "ucb":
            return best
        generator = np.random.default_rng((self._seed, _PICK_STREAM, server_round))
        chosen = generator.choice(np.sort(np.array(candidates)), size=count, replace=False)
        return sorted(int(client) for client in chosen)


class _Only(Criterion):
    """Lets some clients through."""

    def __init__(self, partition_ids: Collection[int]) -> None:
        self._partition_ids = partition_ids

    def select(self, client: ClientProxy) -> bool:
        """Say whether this is one of them."""
        return getattr(client, "partition_id", None) in self._partition_ids
