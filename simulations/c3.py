"""The C3-Score: accuracy, discounted by the bandwidth and the client compute that it took.

From AdaSplit (Chopra et al., arXiv 2112.01637): ``A * exp(-(B + C) / T)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import SettingsError

TEMPERATURE = 8.0
"""The paper's T."""


@dataclass(frozen=True)
class Budgets:
    """What the methods of a comparison may use, in the units of what they used.

    Parameters
    ----------
    bandwidth, compute : float, optional
        Finite, at least 0; default: the largest among the methods. So a score depends on who is
        compared, and the costliest method has a ratio of 1.
    temperature : float
        T of the score, above 0: the larger, the less the cost counts.
    """

    bandwidth: float | None = None
    compute: float | None = None
    temperature: float = TEMPERATURE

    def __post_init__(self) -> None:
        """Check them before anything is run for a score."""
        for name in ("bandwidth", "compute"):
            if (budget := getattr(self, name)) is not None:
                _check_budget(name, budget)
        _check_temperature(self.temperature)

    def for_methods(self, bandwidth: Sequence[float], compute: Sequence[float]) -> Budgets:
        """Return the same budgets, with the largest of what was used where none was given.

        A use that is NaN sets no budget; when none is known, the budget is 0.
        """
        return replace(
            self,
            bandwidth=_largest(bandwidth) if self.bandwidth is None else self.bandwidth,
            compute=_largest(compute) if self.compute is None else self.compute,
        )


def c3_score(
    accuracy: float,
    bandwidth: float,
    compute: float,
    *,
    bandwidth_budget: float,
    compute_budget: float,
    temperature: float = TEMPERATURE,
) -> float:
    """Score one method.

    A method that uses both budgets up keeps ``exp(-2 / 8)``, 78 % of its accuracy; one that uses
    nothing keeps all of it. What is over a budget counts on: twice the budget is a ratio of 2.
    Where the budget is zero, who uses nothing has a ratio of 0, and who uses something no score.

    Parameters
    ----------
    accuracy : float
        In [0, 1]; not in percent.
    bandwidth, compute : float
        What all clients sent and received, and what they computed, at least 0, in any unit.
    bandwidth_budget, compute_budget : float
        What they may use, in the same units; finite, at least 0.
    temperature : float, optional
        T, above 0: the larger, the less the cost counts.

    Returns
    -------
    float
        In [0, 1]; NaN if the accuracy, the bandwidth or the compute is NaN, that is not known.

    Raises
    ------
    SettingsError
        If a value is out of its range, or something was used of a budget of zero.

    Examples
    --------
    >>> round(c3_score(0.9, 5.0, 10.0, bandwidth_budget=10.0, compute_budget=20.0), 4)
    0.7942
    """
    _check_temperature(temperature)
    if not (math.isnan(accuracy) or 0 <= accuracy <= 1):
        raise SettingsError(f"accuracy is {accuracy}; it must lie between 0 and 1")
    ratios = _ratio("bandwidth", bandwidth, bandwidth_budget)
    ratios += _ratio("compute", compute, compute_budget)
    return accuracy * math.exp(-ratios / temperature)


def c3_scores(
    accuracy: Sequence[float],
    bandwidth: Sequence[float],
    compute: Sequence[float],
    budgets: Budgets | None = None,
    names: Sequence[str] | None = None,
) -> NDArray[np.float64]:
    """Score methods that are compared with each other.

    Parameters
    ----------
    accuracy, bandwidth, compute : sequence of float
        One of each a method, as `c3_score` takes them; NaN where a figure is not known.
    budgets : Budgets, optional
        Default: the largest among the methods.
    names : sequence of str, optional
        The methods' names, so that an error says whose figures it is about.

    Returns
    -------
    NDArray[np.float64]
        One score a method; NaN where a figure is not known.

    Raises
    ------
    SettingsError
        As `c3_score`; with `names`, the method is named.
    """
    known = (budgets or Budgets()).for_methods(bandwidth, compute)
    scores = []
    for place, figures in enumerate(zip(accuracy, bandwidth, compute, strict=True)):
        try:
            score = c3_score(
                *figures,
                bandwidth_budget=known.bandwidth or 0.0,
                compute_budget=known.compute or 0.0,
                temperature=known.temperature,
            )
        except SettingsError as error:
            if names is None:
                raise
            raise SettingsError(f"method {names[place]!r}: {error}") from error
        scores.append(score)
    return np.array(scores, dtype=np.float64)


def _ratio(name: str, used: float, budget: float) -> float:
    _check_budget(name, budget)
    if math.isnan(used):
        return math.nan
    if math.isinf(used) or used < 0:
        raise SettingsError(f"{name} is {used}; it must be a number of at least 0")
    if used == 0:
        return 0.0
    if budget == 0:
        raise SettingsError(f"{name} is {used}, but its budget is 0: there is no such score")
    return used / budget


def _check_budget(name: str, budget: float) -> None:
    if not (math.isfinite(budget) and budget >= 0):
        raise SettingsError(f"the {name} budget is {budget}; it must be a number of at least 0")


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise SettingsError(f"the temperature is {temperature}; it must be a number above 0")


def _largest(used: Sequence[float]) -> float:
    return max((value for value in used if not math.isnan(value)), default=0.0)
