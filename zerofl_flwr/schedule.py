"""A fraction that changes over rounds: sparsity ramps and mask-ratio schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.topk import exact_fraction

SHAPES = ("constant", "linear", "cosine", "cubic")


@dataclass(frozen=True)
class Schedule:
    """A fraction in [0, 1] that goes from `start` to `final` over `rounds` rounds and stays there.

    With ``t = min(round, rounds)`` and ``u = t / rounds``, the value is
    ``final + (start - final) * f(u)`` where f is ``1 - u`` (linear), ``(1 + cos(pi u)) / 2``
    (cosine), or ``(1 - u)^3`` (cubic: quick at first, then ever more slowly).

    Parameters
    ----------
    final : float
        The value from round `rounds` on, and in every round of a constant schedule.
    start : float, optional
        The value before the first round. Needed by all shapes but ``constant``, which refuses it.
    rounds : int, default 0
        How many rounds the way takes, at least 1. ``constant`` refuses it.
    shape : {"constant", "linear", "cosine", "cubic"}
        How the value moves.

    Raises
    ------
    SettingsError
        A value is outside [0, 1], or the shape is unknown, lacks something, or refuses it.

    Examples
    --------
    >>> ramp = Schedule(final=0.95, start=0.3, rounds=30, shape="cubic")
    >>> [ramp.value(t) for t in (1, 15, 30, 31)]
    [0.362857, 0.86875, 0.95, 0.95]
    """

    final: float
    start: float | None = None
    rounds: int = 0
    shape: str = "constant"

    def __post_init__(self) -> None:
        """Validate the fields together."""
        if self.shape not in SHAPES:
            raise SettingsError(unknown_name("schedule shape", self.shape, SHAPES))
        exact_fraction(self.final, "final of a schedule", numbers_only=True)
        if type(self.rounds) is not int or self.rounds < 0:
            raise SettingsError(f"rounds of a schedule must be an int >= 0, not {self.rounds!r}")
        if self.shape == "constant":
            if self.start is not None or self.rounds != 0:
                raise SettingsError(
                    f"a constant schedule takes neither start ({self.start}) nor rounds "
                    f"({self.rounds}); choose another shape or leave them out"
                )
            return
        if self.start is None or self.rounds < 1:
            raise SettingsError(
                f"a {self.shape} schedule needs start and rounds >= 1, "
                f"got start {self.start} and rounds {self.rounds}"
            )
        exact_fraction(self.start, "start of a schedule", numbers_only=True)

    def value(self, server_round: int) -> float:
        """Return the fraction of one round, rounded to 6 decimals.

        Parameters
        ----------
        server_round : int
            Flower's round number: 1 is the first round, 0 gives the value before it.

        Returns
        -------
        float
            In [0, 1]; exactly `final` from round `rounds` on.

        Raises
        ------
        SettingsError
            The round is negative.
        """
        if server_round < 0:
            raise SettingsError(f"rounds count from 1, got {server_round}")
        if self.start is None or server_round >= self.rounds:
            return float(self.final)
        left = 1 - server_round / self.rounds
        if self.shape == "cubic":
            left = left**3
        elif self.shape == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * (1 - left)))
        return round(self.final + (self.start - self.final) * left, 6)
