"""What a run of AdaSplit may take: bytes and multiply-adds, of all clients together and of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zerofl_flwr.errors import SettingsError

Limit = float | Mapping[int, float] | None
"""The same for every client, or by partition id; None, and who is not named: no limit."""


@dataclass(frozen=True)
class Budget:
    """Limits that a run of AdaSplit (arXiv 2112.01637) never exceeds, in training.

    Bytes are those of serialized messages, both ways, as a run's tables show them. Multiply-adds
    are those of training steps with the backward passes, as :func:`zerofl_flwr.costs.step_costs`
    counts them. Tests are billed apart, and no part of a budget.

    Parameters
    ----------
    bytes : float, optional
        Of all clients together; None: no limit. A whole number, as every limit: 5e7 is one.
    multiply_adds : float, optional
        Of all clients and the server together.
    client_bytes : float or mapping of int to float, optional
        Of each client; the same for all, or by partition id. Who is not named has no limit.
    client_multiply_adds : float or mapping of int to float, optional
        Of each client's own work.

    Raises
    ------
    SettingsError
        If a limit is no whole number from 0, or a partition id no whole number from 0.
    """

    bytes: float | None = None
    multiply_adds: float | None = None
    client_bytes: Limit = None
    client_multiply_adds: Limit = None

    def __post_init__(self) -> None:
        """Refuse what is no limit."""
        for name in ("bytes", "multiply_adds"):
            check_limit(name, getattr(self, name))
        for name in ("client_bytes", "client_multiply_adds"):
            limit = getattr(self, name)
            if not isinstance(limit, Mapping):
                check_limit(name, limit)
                continue
            for client, value in limit.items():
                if type(client) is not int or client < 0:
                    raise SettingsError(
                        f"{name} names client {client!r}; partition ids are whole numbers from 0"
                    )
                check_limit(f"{name} of client {client}", value)
            object.__setattr__(self, name, dict(limit))

    def bytes_of(self, client: int) -> float:
        """Return the most bytes of one client; infinity without a limit."""
        return _limit_of(self.client_bytes, client)

    def multiply_adds_of(self, client: int) -> float:
        """Return the most multiply-adds of one client's own work; infinity without a limit."""
        return _limit_of(self.client_multiply_adds, client)

    def check_clients(self, clients: Collection[int]) -> None:
        """Refuse limits of clients that there are not.

        Raises
        ------
        SettingsError
            Naming the limit and the partition id.
        """
        for name in ("client_bytes", "client_multiply_adds"):
            limit = getattr(self, name)
            unknown = sorted(set(limit).difference(clients)) if isinstance(limit, Mapping) else []
            if unknown:
                raise SettingsError(
                    f"{name} names client {unknown[0]}, but the clients are "
                    f"{', '.join(map(str, sorted(clients)))}"
                )


def check_limit(name: str, value: object) -> None:
    """Refuse what is no limit; None is one.

    Raises
    ------
    SettingsError
        If it is no whole number from 0.
    """
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or value != int(value):  # type: ignore[operator, call-overload]
        raise SettingsError(f"{name} is {value!r}; it must be a whole number from 0")


def _limit_of(limit: Limit, client: int) -> float:
    value = limit.get(client) if isinstance(limit, Mapping) else limit
    return math.inf if value is None else value
