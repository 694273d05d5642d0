"""Who trains in a round of AdaSplit, and who of them uploads activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_options import Participation, share_of
from strategies.cohort import Cohort
from strategies.member import Member
from strategies.state import State
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

_PICK_STREAM = 4  # sets random picks apart from other draws of the same seed and round


@dataclass(frozen=True)
class Turn:
    """Who takes part in a round.

    Parameters
    ----------
    phase : str
        ``"local"`` or ``"global"``.
    members : list of Member
        Who trains, in partition order; their messages are metered.
    picks : frozenset of int
        Partition ids of those who upload activations; empty in the local phase.
    terms : mapping of int to (float, float)
        Exploitation and exploration of the orchestrator's score before the round, for each member;
        empty in the local phase.
    """

    phase: str
    members: list[Member]
    picks: frozenset[int] = frozenset()
    terms: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def terms_of(self, client: int | None) -> tuple[float, float]:
        """Return a client's terms; NaN where there are none."""
        return (math.nan, math.nan) if client is None else self.terms.get(client, (math.nan,) * 2)


class Turns:
    """Draws the clients of each round, and picks among them (AdaSplit, arXiv 2112.01637).

    Parameters
    ----------
    settings : AdaSplitSettings
        ``selection``, ``eta`` and ``client_weights`` count here.
    participation : Participation
        How many of the available clients train in a round.
    orchestrator : Orchestrator
        Makes the picks of ``selection="ucb"``, and gets to know everybody who could be picked.
    seed : int
        Random picks derive from (seed, round).
    """

    def __init__(
        self,
        settings: AdaSplitSettings,
        participation: Participation,
        orchestrator: Orchestrator,
        seed: int,
    ) -> None:
        self.relay = Relay()
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

        def pick(candidates: Sequence[int]) -> list[int]:
            return self._pick(candidates, server_round)

        is_global = phase == "global"
        if self._settings.client_weights == "relayed":
            available = [member.partition_id for member in cohort.members()]
            if not available:
                return Turn(phase, [])
            client, picked = self.relay.next(available, pick if is_global else None)
            drawn = cohort.sample(1, self._participation.min_available, _Only(client))
            return self._turn(phase, drawn, [client] if picked else [])
        participation = self._participation
        number = share_of(cohort.num_available(), participation.fraction_fit)
        number = max(number, participation.min_fit)
        drawn = cohort.sample(number, participation.min_available)
        members = [member.partition_id for member in cast(list[Member], drawn)]
        return self._turn(phase, drawn, pick(members) if is_global and members else [])

    def _turn(self, phase: str, drawn: Sequence[ClientProxy], picks: Sequence[int]) -> Turn:
        members = cast(list[Member], list(drawn))
        if phase == "local":
            return Turn(phase, members)
        ids = [member.partition_id for member in members]
        terms = self._orchestrator.terms(ids)
        pairs = zip(terms.exploitation.tolist(), terms.exploration.tolist(), strict=True)
        return Turn(phase, members, frozenset(picks), dict(zip(ids, pairs, strict=True)))

    def _pick(self, candidates: Sequence[int], server_round: int) -> list[int]:
        count = self._settings.uploads(len(candidates))
        # Always asked: whoever could be picked has to be known to it when losses come.
        best = self._orchestrator.pick(candidates, count)
        if self._settings.selection == "ucb":
            return best
        generator = np.random.default_rng((self._seed, _PICK_STREAM, server_round))
        chosen = generator.choice(np.sort(np.array(candidates)), size=count, replace=False)
        return sorted(int(client) for client in chosen)


class Relay:
    """Whose turn it is to get the client part from the client before: round-robin by partition.

    A pass goes once through everybody who is available when it begins. Uploaders are picked at its
    start; where the global phase begins within a pass, among those whose turn is still to come.

    Attributes
    ----------
    misses : int
        Turns in a row without a good reply; a whole pass of them means that nobody works.
    """

    def __init__(self) -> None:
        self.misses = 0
        self._queue: list[int] = []
        self._picks: list[int] | None = None
        self._length = 0

    @property
    def nobody_works(self) -> bool:
        """Whether everybody of a whole pass has failed."""
        return self.misses >= self._length

    def next(
        self, available: Sequence[int], pick: Callable[[Sequence[int]], list[int]] | None
    ) -> tuple[int, bool]:
        """Return whose turn it is and whether it uploads; who left in between is passed over.

        Parameters
        ----------
        available : sequence of int
            Partition ids, ascending; at least one.
        pick : callable or None
            Picks the uploaders of some clients; None in the local phase.
        """
        queue = [client for client in self._queue if client in available]
        if not queue:
            queue, self._picks, self._length = list(available), None, len(available)
        if pick is not None and self._picks is None:
            self._picks = pick(queue)
        client, self._queue = queue[0], queue[1:]
        return client, client in (self._picks or ())

    def state_arrays(self) -> State:
        """Return everything as int64 arrays; ``picks`` only once there are some."""
        state = {
            "queue": np.array(self._queue, np.int64),
            "counts": np.array([self.misses, self._length], np.int64),
        }
        if self._picks is not None:
            state["picks"] = np.array(self._picks, np.int64)
        return state

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is something else; then nothing has changed.
        """
        try:
            misses, length = state["counts"].tolist()
            queue = state["queue"].tolist()
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"this is no state of AdaSplit's relay: {error!r}") from error
        self.misses, self._length, self._queue = misses, length, queue
        self._picks = state["picks"].tolist() if "picks" in state else None


class _Only(Criterion):
    """Lets one client through."""

    def __init__(self, partition_id: int) -> None:
        self._partition_id = partition_id

    def select(self, client: ClientProxy) -> bool:
        """Say whether this is the client."""
        return getattr(client, "partition_id", None) == self._partition_id
