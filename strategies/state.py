"""Save and restore what a strategy carries from round to round, as plain named arrays.

Flower's strategies have no such protocol. A strategy of one's own joins it with two methods,
``state_arrays()`` and ``load_state_arrays(state)``; Flower's that average are known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

State = dict[str, Array]
_STATELESS: tuple[type[Strategy], ...] = (FedAvg, FedProx)
_SERVER_OPTIMIZERS: tuple[type[Strategy], ...] = (FedAdagrad, FedAdam, FedYogi)


@runtime_checkable
class Resumable(Protocol):
    """A strategy that can be checkpointed."""

    def state_arrays(self) -> State:
        """Return everything that the next round depends on, besides the model."""

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned."""


def check_resumable(strategy: Strategy) -> None:
    """Refuse a strategy whose state nobody can save.

    Exact types only: a subclass may carry state that its parent does not know of. A strategy that
    wraps another as its attribute ``strategy`` is as resumable as that one.

    Raises
    ------
    SettingsError
        Naming the strategy.
    """
    inner = getattr(strategy, "strategy", None)
    if isinstance(inner, Strategy):
        check_resumable(inner)
    known = type(strategy) in (*_STATELESS, *_SERVER_OPTIMIZERS, FedAvgM)
    if not (known or isinstance(strategy, Resumable)):
        raise SettingsError(
            f"{type(strategy).__name__} cannot be checkpointed or resumed: give it the methods "
            "state_arrays() and load_state_arrays(state)"
        )


def strategy_state(strategy: Strategy) -> State:
    """Return a strategy's state as named arrays (empty for FedAvg and FedProx)."""
    check_resumable(strategy)
    if isinstance(strategy, Resumable):
        return strategy.state_arrays()
    if isinstance(strategy, FedAvgM):
        state = _numbered("momentum", strategy.momentum_vector)
        if strategy.server_opt and strategy.initial_parameters is not None:
            state |= _numbered("current", parameters_to_ndarrays(strategy.initial_parameters))
        return state
    if isinstance(strategy, FedAdagrad | FedAdam | FedYogi):
        return (
            _numbered("current", strategy.current_weights)
            | _numbered("first_moment", strategy.m_t)
            | _numbered("second_moment", strategy.v_t)
        )
    return {}


def load_strategy_state(strategy: Strategy, state: Mapping[str, Array]) -> None:
    """Put a state of :func:`strategy_state` back into a newly built strategy.

    Raises
    ------
    SettingsError
        If nobody can load the strategy's state, or the state is that of another kind of strategy.
    """
    check_resumable(strategy)
    if isinstance(strategy, Resumable):
        strategy.load_state_arrays(state)
    elif isinstance(strategy, FedAvgM):
        _check_parts(strategy, state, "momentum", "current")
        strategy.momentum_vector = _listed("momentum", state)
        if (current := _listed("current", state)) is not None:
            strategy.initial_parameters = ndarrays_to_parameters(current)
    elif isinstance(strategy, FedAdagrad | FedAdam | FedYogi):
        _check_parts(strategy, state, "current", "first_moment", "second_moment")
        current = _listed("current", state)
        if current is None:
            raise SettingsError(f"the state holds no weights of {type(strategy).__name__}")
        strategy.current_weights = current
        strategy.m_t = _listed("first_moment", state)
        strategy.v_t = _listed("second_moment", state)
    else:
        _check_parts(strategy, state)


def prefixed(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Put ``prefix/`` before each name."""
    return {f"{prefix}/{name}": value for name, value in state.items()}


def unprefixed(prefix: str, state: Mapping[str, Array]) -> State:
    """Return the part of a state that :func:`prefixed` put under ``prefix``."""
    start = f"{prefix}/"
    return {
        name.removeprefix(start): value for name, value in state.items() if name.startswith(start)
    }


def _numbered(name: str, arrays: list[Array] | None) -> State:
    if not arrays:
        return {}
    return {f"{name}/{index:05d}": np.asarray(array) for index, array in enumerate(arrays)}


def _listed(name: str, state: Mapping[str, Array]) -> list[Array] | None:
    part = unprefixed(name, state)
    return [part[key] for key in sorted(part)] or None


def _check_parts(strategy: Strategy, state: Mapping[str, Array], *known: str) -> None:
    if unknown := {name.partition("/")[0] for name in state} - set(known):
        raise SettingsError(
            f"the state holds {', '.join(sorted(unknown))}, which {type(strategy).__name__} does "
            "not have: it was saved with another strategy"
        )
