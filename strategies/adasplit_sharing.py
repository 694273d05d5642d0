"""When AdaSplit's client parts are averaged or relayed, and who has come how far since then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adasplit_flwr.settings import AdaSplitSettings
from strategies.state import State
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

FINISH = "finish"
"""Phase of a round that only brings the last gradients, and fetches the client parts."""

_COUNTS, _MEMBERS, _CLIENTS, _SAMPLES = "counts", "members", "clients", "samples"


class Sharing:
    """The exchanges since client parts were last shared (AdaSplit, arXiv 2112.01637).

    A period begins with the clients that are sent the shared part, one of them where it is relayed.
    It has ``share_every`` exchanges, and ends when their parts come up: with the last exchange, or,
    while server gradients may be under way, in a finishing round after it. The run's last round
    ends a period early. So does, where one client has its turn, an exchange of it that failed: what
    it has until then is fetched, if it has come any further. Personal parts have no periods.

    Parameters
    ----------
    settings : AdaSplitSettings
        ``client_weights``, ``share_every`` and ``server_gradient`` count here.
    rounds : int
        Rounds of the run.

    Attributes
    ----------
    members : tuple of int
        Partition ids of those who take part in the period; empty before the first exchange.
    samples : dict of int to int
        Of those whose part has gone on since the period began, how many samples they trained on.
    is_over : bool
        Whether the last round that :meth:`took` was told of ended the period.
    """

    def __init__(self, settings: AdaSplitSettings, rounds: int) -> None:
        self._settings = settings
        self._rounds = rounds
        self._is_active = settings.shares_weights
        self.begin()

    def begin(self, members: Sequence[int] = ()) -> None:
        """Forget the period before; personal parts have no members."""
        self.members = tuple(members) if self._is_active else ()
        self.samples: dict[int, int] = {}
        self.is_over = False
        self._exchanges = 0
        self._is_cut_short = False
        self._has_gradients = False

    def finishes(self, server_round: int) -> bool:
        """Say whether a round is to end the period instead of having an exchange."""
        is_due = self._exchanges >= self._settings.share_every or server_round == self._rounds
        return bool(self.samples) and (self._is_cut_short or (is_due and self._has_gradients))

    def shares(self, server_round: int, picks: Sequence[int]) -> bool:
        """Say whether parts come up with a round's exchange, in which some clients upload.

        In the run's last round they do whatever is under way.
        """
        waits = self._has_gradients or (self._settings.returns_gradients and bool(picks))
        is_last = self._exchanges + 1 >= self._settings.share_every
        return self._is_active and (server_round == self._rounds or (is_last and not waits))

    def ending(self, server_round: int, *, gradients: bool) -> tuple[int, bool]:
        """Say how the period goes on after an exchange in a round, which begins it or goes on.

        Parameters
        ----------
        server_round : int
            The exchange's.
        gradients : bool
            Whether server gradients are under way then.

        Returns
        -------
        tuple of (int, bool)
            How many exchanges follow, and whether a finishing round does; parts come up in that,
            or with the last exchange.
        """
        exchanges, rounds = self._settings.share_every - self._exchanges - 1, self._rounds
        finishes = gradients and server_round < rounds
        return max(0, min(exchanges, rounds - server_round - finishes)), finishes

    def may_have_gradients(self, server_round: int) -> bool:
        """Say whether server gradients can be under way before a period is over that goes on."""
        last = min(server_round + self._settings.share_every, self._rounds)
        is_global = self._settings.phase_of(last, self._rounds) == "global"
        return self._settings.returns_gradients and is_global

    @property
    def has_gradients(self) -> bool:
        """Whether server gradients may be under way."""
        return self._has_gradients

    def idles(self) -> None:
        """Take note of a round in which nobody of the period could take part."""
        if self._exchanges:
            self.took({}, finished=False, shared=False, picks=())
        if self.is_over or not self.samples:
            self.begin()

    def begins(self, clients: Sequence[int]) -> frozenset[int]:
        """Return which of some clients are to be sent the shared part."""
        return frozenset(clients).difference(self.samples if self._is_active else clients)

    def lost(self, client: int) -> None:
        """Note that a client has no state any more: it begins the period once again."""
        self.samples.pop(client, None)

    def took(
        self, samples: Mapping[int, int], *, finished: bool, shared: bool, picks: Sequence[int]
    ) -> None:
        """Take note of a round's good replies.

        Parameters
        ----------
        samples : mapping of int to int
            Who replied, and how many samples each trained on.
        finished : bool
            Whether it was a finishing round.
        shared : bool
            Whether client parts were asked for.
        picks : sequence of int
            Who was to upload.
        """
        if not self._is_active:
            return
        if not finished:
            self._exchanges += 1
            self._has_gradients |= self._settings.returns_gradients and bool(picks)
            for client, number in samples.items():
                self.samples[client] = self.samples.get(client, 0) + number
        if samples or self._settings.client_weights == "averaged":
            self.is_over = shared
        else:
            self.is_over = finished or not self.samples
            self._is_cut_short = not self.is_over

    def state_arrays(self) -> State:
        """Return the period as int64 arrays; nothing between two periods."""
        if not self._exchanges:
            return {}
        counts = [self._exchanges, self._is_cut_short, self._has_gradients]
        return {
            _COUNTS: np.array(counts, np.int64),
            _MEMBERS: np.array(self.members, np.int64),
            _CLIENTS: np.array(list(self.samples), np.int64),
            _SAMPLES: np.array(list(self.samples.values()), np.int64),
        }

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is something else; then nothing has changed.
        """
        if not state:
            self.begin()
            return
        try:
            exchanges, is_cut_short, has_gradients = state[_COUNTS].tolist()
            members = state[_MEMBERS].tolist()
            clients, samples = state[_CLIENTS].tolist(), state[_SAMPLES].tolist()
            known = dict(zip(clients, samples, strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"this is no state of AdaSplit's shared client parts: {error!r}"
            ) from error
        self.begin(members)
        self.samples, self._exchanges = known, exchanges
        self._is_cut_short, self._has_gradients = bool(is_cut_short), bool(has_gradients)
