"""Which messages an AdaSplit run has, round by round, told from its settings alone.

Who is drawn and picked is not known before a run, but how many are, and when client parts travel.
:class:`strategies.adasplit_sharing.Sharing` and :class:`strategies.adasplit_relay.Relay`, which
decide that in a run, decide it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adasplit_flwr.plans import FRESH
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_relay import Relay
from strategies.adasplit_sharing import FINISH, Sharing


@dataclass(frozen=True)
class Round:
    """The messages of one round; those of its clients are alike, but for the sizes of their data.

    Parameters
    ----------
    server_round : int
        From 1.
    state_round : int
        Round that its clients trained in before; the latest that can be, where that differs.
    phase : str
        local, global, or finish.
    begins, shares : bool
        Whether client parts go down, and come up.
    uploads : int
        How many clients upload activations.
    returned : int
        How many clients get gradients, which are those of the exchange before.
    number : int, optional
        How many exchanges its clients have had before; None where that is not known.
    client : int, optional
        Whose turn it is, where client parts are relayed.
    turn : int
        Number of that turn, from 0.
    """

    server_round: int
    state_round: int
    phase: str
    begins: bool
    shares: bool
    uploads: int
    returned: int
    number: int | None = None
    client: int | None = None
    turn: int = 0

    @property
    def finishes(self) -> bool:
        """Whether no batch is taken."""
        return self.phase == FINISH


def picks_are_known(settings: AdaSplitSettings, clients: int) -> bool:
    """Say whether everybody uploads who could be picked among so many clients or fewer."""
    return all(settings.uploads(number) == number for number in range(1, clients + 1))


def rounds_of_all(
    settings: AdaSplitSettings, rounds: int, clients: int, drawn: int
) -> Iterator[Round]:
    """Yield the rounds of a run whose client parts are personal or averaged.

    Parameters
    ----------
    settings : AdaSplitSettings
        ``client_weights`` is not relayed.
    rounds : int
        Of the run.
    clients, drawn : int
        How many clients there are, and how many of them train in a round. Where these differ, the
        first part that a client of personal parts is sent is in no round, and gradients are taken
        to go back in the next round.
    """
    sharing, members = Sharing(settings, rounds), list(range(drawn))
    everybody, personal = drawn == clients, not settings.shares_weights
    number, waiting = 0, 0
    for server_round in range(1, rounds + 1):
        finishes = sharing.finishes(server_round)
        phase = FINISH if finishes else settings.phase_of(server_round, rounds)
        picks = members[: settings.uploads(drawn)] if phase == "global" else []
        if not finishes and not sharing.members:
            sharing.begin(members)
        begins = server_round == 1 and everybody if personal else bool(sharing.begins(members))
        shares = finishes or sharing.shares(server_round, picks)
        yield Round(
            server_round,
            server_round - 1,
            phase,
            begins,
            shares,
            uploads=len(picks),
            returned=0 if begins else waiting,
            number=number if everybody else None,
        )
        sharing.took(dict.fromkeys(members, 1), finished=finishes, shared=shares, picks=picks)
        number += not finishes
        waiting = len(picks) if settings.returns_gradients else 0
        if sharing.is_over:
            waiting = 0
            sharing.begin()


def relayed_rounds(settings: AdaSplitSettings, rounds: int, clients: int) -> Iterator[Round]:
    """Yield the rounds of a run whose client part is relayed, as if all of them uploaded.

    Parameters
    ----------
    settings : AdaSplitSettings
        ``client_weights`` is relayed. Where gradients go back, but not to everybody, rounds
        depend on who is picked, and are others than these.
    rounds, clients : int
        Of the run.
    """
    relay, sharing, available = Relay(), Sharing(settings, rounds), list(range(clients))
    numbers, states, waiting = [0] * clients, [FRESH] * clients, [0] * clients
    turn = -1

    def everybody(candidates: Sequence[int]) -> list[int]:
        return list(candidates)

    for server_round in range(1, rounds + 1):
        finishes, uploads = sharing.finishes(server_round), False
        phase = FINISH if finishes else settings.phase_of(server_round, rounds)
        pick = everybody if phase == "global" else None
        if sharing.members:
            client = sharing.members[0]
            if not finishes:
                uploads = relay.goes_on(client, available, pick)
        else:
            client, uploads = relay.next(available, pick)
            sharing.begin([client])
            turn += 1
        begins, picks = bool(sharing.begins([client])) and not finishes, [client] * uploads
        shares = finishes or sharing.shares(server_round, picks)
        yield Round(
            server_round,
            states[client],
            phase,
            begins,
            shares,
            uploads=int(uploads),
            returned=0 if begins else waiting[client],
            number=numbers[client],
            client=client,
            turn=turn,
        )
        sharing.took({client: 1}, finished=finishes, shared=shares, picks=picks)
        numbers[client] += not finishes
        states[client] = server_round
        waiting[client] = int(uploads and settings.returns_gradients)
        if sharing.is_over:
            waiting = [0] * clients
            sharing.begin()
