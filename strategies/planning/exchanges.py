"""How many batches and samples each exchange of a client has, from the size of its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from adasplit_flwr.batches import epoch_sizes
from strategies.adasplit_options import check_whole
from zerofl_flwr.errors import SettingsError


@dataclass(frozen=True)
class Taken:
    """What an exchange takes of a client's data; nothing, where it only finishes others."""

    batches: int = 0
    samples: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each batch, divided evenly: costs depend on their number and sum alone."""
        if not self.batches:
            return ()
        each, more = divmod(self.samples, self.batches)
        return (each + 1,) * more + (each,) * (self.batches - more)


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of one client, as :class:`adasplit_flwr.ShuffledBatches` gives their batches.

    Parameters
    ----------
    samples : int
        What the client trains on, from 1.
    batch_size : int
        Of its batches.
    iterations : int, optional
        Batches of an exchange; default: an epoch of its own data.
    full_batches : bool
        Whether an epoch leaves out what does not fill a batch.

    Raises
    ------
    SettingsError
        If an epoch has no batch.
    """

    samples: int
    batch_size: int
    iterations: int | None = None
    full_batches: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot train."""
        check_whole("batch_size", self.batch_size)
        if not self._sizes:
            raise SettingsError(
                f"a client has {self.samples} samples, which do not fill one batch of "
                f"{self.batch_size}"
            )

    def take(self, number: int) -> Taken:
        """Return what the exchange with this number takes, counted from 0."""
        epoch = len(self._sizes)
        if self.iterations is None:
            return Taken(epoch, sum(self._sizes))
        before, after = number * self.iterations, (number + 1) * self.iterations
        return Taken(self.iterations, self._samples_until(after) - self._samples_until(before))

    @cached_property
    def period(self) -> int:
        """After how many exchanges they repeat themselves."""
        return 1 if self.most == self.least else self._pass

    @cached_property
    def most(self) -> Taken:
        """What an exchange takes at the most, wherever in its data the client stands."""
        return max(map(self.take, range(self._pass)), key=lambda taken: taken.samples)

    @cached_property
    def least(self) -> Taken:
        """What an exchange takes at the least."""
        return min(map(self.take, range(self._pass)), key=lambda taken: taken.samples)

    @property
    def _pass(self) -> int:
        """How many exchanges bring the client back to the beginning of an epoch."""
        if self.iterations is None:
            return 1
        epoch = len(self._sizes)
        return epoch // math.gcd(epoch, self.iterations)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return epoch_sizes(self.samples, self.batch_size, full=self.full_batches)

    def _samples_until(self, batches: int) -> int:
        epochs, rest = divmod(batches, len(self._sizes))
        return epochs * sum(self._sizes) + sum(self._sizes[:rest])


def exchanges_of(
    samples: Sequence[int],
    batch_size: int,
    iterations: int | None = None,
    *,
    full_batches: bool = False,
) -> list[Exchanges]:
    """Return each client's exchanges, in partition order.

    Raises
    ------
    SettingsError
        If there is no client, or one cannot train; the client is named.
    """
    made = []
    for client, own in enumerate(check_samples(samples)):
        try:
            made.append(Exchanges(own, batch_size, iterations, full_batches))
        except SettingsError as error:
            raise SettingsError(f"client {client}: {error}") from error
    return made


def check_samples(samples: Sequence[Any]) -> list[int]:
    """Return what each client trains on, as Python's own whole numbers.

    Raises
    ------
    SettingsError
        If there is no client, or one trains on nothing; the client is named.
    """
    if not len(samples):
        raise SettingsError("there are no clients: samples is empty")
    checked = []
    for client, own in enumerate(samples):
        if isinstance(own, bool) or not isinstance(own, int | np.integer) or own < 1:
            raise SettingsError(
                f"client {client} has {own!r} samples; it must be a whole number from 1"
            )
        checked.append(int(own))
    return checked


def drawn_clients(clients_per_round: int | None, clients: int) -> int:
    """Return how many of the clients train in a round; None: all.

    Raises
    ------
    SettingsError
        If there are not so many.
    """
    if clients_per_round is None:
        return clients
    if type(clients_per_round) is not int or not 1 <= clients_per_round <= clients:
        raise SettingsError(
            f"clients_per_round is {clients_per_round!r}; it must be from 1 to {clients}, the "
            "number of clients"
        )
    return clients_per_round
