"""The choice among settings of known costs: what fits into a budget, and the best of that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from adasplit_flwr.settings import AdaSplitSettings
from strategies.budget import Budget
from strategies.planning.bill import RunCosts
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.settings import ZeroFLSettings

if TYPE_CHECKING:
    import pandas as pd

Settings = TypeVar("Settings", AdaSplitSettings, ZeroFLSettings)
Choice = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Candidate(Generic[Settings]):
    """Settings that a run may have, and what it costs with them.

    Parameters
    ----------
    choice : mapping of str to value
        What was chosen, by the names of run settings: ``kappa``, ``eta`` and ``cut``; or
        ``sparsity`` and ``mask_ratio``.
    settings : AdaSplitSettings or ZeroFLSettings
        With the choice.
    costs : RunCosts
        Of the run.
    goals : tuple of float
        What is to be large, the most important first.
    over : tuple of str
        Which limits the run may exceed, in words; empty: it fits.
    """

    choice: Choice
    settings: Settings
    costs: RunCosts
    goals: tuple[float, ...]
    over: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether a run never exceeds the budget."""
        return not self.over

    @property
    def name(self) -> str:
        """The choice in words."""
        return ", ".join(f"{name} {value}" for name, value in self.choice.items())


@dataclass(frozen=True)
class Plan(Generic[Settings]):
    """The best settings that fit into a budget.

    Parameters
    ----------
    chosen : Candidate
        The best.
    candidates : tuple of Candidate
        All, in the order of the grid.
    budget : Budget
        The limits; AdaSplit can also be held to them: ``AdaSplit(budget=plan.budget)``.
    """

    chosen: Candidate[Settings]
    candidates: tuple[Candidate[Settings], ...]
    budget: Budget = field(default_factory=Budget)

    @property
    def settings(self) -> Settings:
        """The method's settings with the choice."""
        return self.chosen.settings

    @property
    def costs(self) -> RunCosts:
        """What a run costs with them, at the most."""
        return self.chosen.costs

    @property
    def slack(self) -> dict[str, float]:
        """What is left of the limits on all clients together; infinity without a limit."""
        total = self.costs.total
        return {
            "bytes": _limit(self.budget.bytes) - total.bytes,
            "multiply_adds": _limit(self.budget.multiply_adds) - total.ops,
        }

    def ranked(self) -> list[Candidate[Settings]]:
        """Return the candidates that fit, the best first."""
        return sorted((one for one in self.candidates if one.fits), key=_rank)

    def table(self) -> pd.DataFrame:
        """Return a row for each candidate, in the order of the grid.

        Returns
        -------
        DataFrame
            The choice; bytes, of all clients; multiply-adds of clients and server, with the
            backward passes; whether the costs are exact; the most that one client costs; what the
            plan wants much of; and ``fits``, ``over`` (why not) and ``chosen``.
        """
        import pandas as pd

        return pd.DataFrame([self._row(candidate) for candidate in self.candidates])

    def _row(self, candidate: Candidate[Settings]) -> dict[str, object]:
        costs, total = candidate.costs, candidate.costs.total
        goals = {"least_learned": costs.least_learned, "least_steps": costs.least_steps}
        if isinstance(candidate.settings, ZeroFLSettings):
            goals = {"weights_up": costs.weights_up}
        return {
            **candidate.choice,
            **goals,
            "bytes": total.bytes,
            "downlink_bytes": total.downlink_bytes,
            "uplink_bytes": total.uplink_bytes,
            "multiply_adds": total.ops,
            "client_multiply_adds": total.client_ops,
            "server_multiply_adds": total.server_ops,
            "exact": costs.is_exact,
            "most_bytes_of_a_client": max(client.bytes for client in costs.clients),
            "most_multiply_adds_of_a_client": max(client.client_ops for client in costs.clients),
            "fits": candidate.fits,
            "over": "; ".join(candidate.over),
            "chosen": candidate is self.chosen,
        }


def choose(candidates: Sequence[Candidate[Settings]], budget: Budget) -> Plan[Settings]:
    """Choose the best candidate that fits.

    That has the largest goals, the first of them first; among equal ones, the fewest bytes, then
    the fewest multiply-adds; then the place in the grid decides.

    Raises
    ------
    SettingsError
        If none fits, naming the cheapest and what it costs; or there is none.
    """
    if not candidates:
        raise SettingsError("there is nothing to choose from: the grid is empty")
    if fitting := [candidate for candidate in candidates if candidate.fits]:
        return Plan(min(fitting, key=_rank), tuple(candidates), budget)
    cheapest = min(candidates, key=lambda candidate: _overrun(candidate.costs, budget))
    total = cheapest.costs.total
    raise SettingsError(
        f"none of {len(candidates)} candidates fits into the budget; the cheapest, with "
        f"{cheapest.name}, takes {total.bytes:,} bytes and {total.ops:,} multiply-adds: "
        f"{'; '.join(cheapest.over)}"
    )


def overruns(costs: RunCosts, budget: Budget) -> tuple[str, ...]:
    """Say which limits a run may exceed, and by what; nothing where it fits."""
    return tuple(
        f"{name} {cost:,}, of {limit:,.0f}"
        for name, cost, limit in _limits(costs, budget)
        if cost > limit
    )


def _limits(costs: RunCosts, budget: Budget) -> Iterator[tuple[str, int, float]]:
    """Yield each limit's name, what of it is taken, and the limit."""
    yield "bytes", costs.total.bytes, _limit(budget.bytes)
    yield "multiply-adds", costs.total.ops, _limit(budget.multiply_adds)
    for client, own in enumerate(costs.clients):
        yield f"bytes of client {client}", own.bytes, budget.bytes_of(client)
        yield (
            f"multiply-adds of client {client}",
            own.client_ops,
            budget.multiply_adds_of(client),
        )


def _overrun(costs: RunCosts, budget: Budget) -> tuple[float, int, int]:
    """Return how often a run takes a limit at the most, then its bytes and multiply-adds."""
    times = [
        cost / limit if limit else math.inf for _, cost, limit in _limits(costs, budget) if cost
    ]
    return max(times, default=0.0), costs.total.bytes, costs.total.ops


def _limit(value: float | None) -> float:
    return math.inf if value is None else value


def _rank(candidate: Candidate[Settings]) -> tuple[float, ...]:
    total = candidate.costs.total
    return (*(-goal for goal in candidate.goals), total.bytes, total.ops)
