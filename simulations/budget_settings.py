"""What an AdaSplit run's training may take, as a run's settings say it."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.budget import Budget, check_limit
from zerofl_flwr.errors import SettingsError

_NO_LIMIT = "none"
_CLIENT_LIMITS = ("client_bytes_budget", "client_multiply_adds_budget")


@dataclass(frozen=True)
class BudgetSettings:
    """Limits that a run never exceeds: clients that cannot afford an upload are not picked.

    Parameters
    ----------
    bytes_budget : float, optional
        Bytes of all training messages, up and down, together, such as 5e7; those of tests do not
        count.
    multiply_adds_budget : float, optional
        Multiply-adds of all clients' and the server's training together, backward passes included.
    client_bytes_budget : str, optional
        Bytes of each client: one number for all, or one for each client in partition order,
        separated by commas, such as 1e6,5e6,none.
    client_multiply_adds_budget : str, optional
        Multiply-adds of each client's own training, in the same form.

    Raises
    ------
    SettingsError
        If a limit is no whole number from 0.
    """

    bytes_budget: float | None = None
    multiply_adds_budget: float | None = None
    client_bytes_budget: str | None = None
    client_multiply_adds_budget: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no limit."""
        for name in ("bytes_budget", "multiply_adds_budget"):
            check_limit(name, getattr(self, name))
        for name in _CLIENT_LIMITS:
            _limits(name, getattr(self, name))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is limited."""
        return all(value is None for value in vars(self).values())

    def check_clients(self, num_clients: int) -> None:
        """Refuse a list that has not one limit for each client.

        Raises
        ------
        SettingsError
            Naming both numbers.
        """
        for name in _CLIENT_LIMITS:
            given = len(_limits(name, getattr(self, name)))
            if given not in (0, 1, num_clients):
                raise SettingsError(
                    f"{name} has {given} limits; expected one for all clients, or one for each of "
                    f"{num_clients} clients"
                )

    def to_budget(self) -> Budget | None:
        """Return the strategy's budget; None where nothing is limited."""
        if self.is_empty:
            return None
        return Budget(
            bytes=self.bytes_budget,
            multiply_adds=self.multiply_adds_budget,
            client_bytes=_of_clients("client_bytes_budget", self.client_bytes_budget),
            client_multiply_adds=_of_clients(
                "client_multiply_adds_budget", self.client_multiply_adds_budget
            ),
        )


def _of_clients(name: str, text: str | None) -> float | dict[int, float] | None:
    limits = _limits(name, text)
    if len(limits) <= 1:
        return limits[0] if limits else None
    return {client: limit for client, limit in enumerate(limits) if limit is not None}


def _limits(name: str, text: str | None) -> list[float | None]:
    """Read the limits in a text; none at all where there is no text."""
    limits: list[float | None] = []
    for item in [] if text is None else text.split(","):
        if item.strip() == _NO_LIMIT:
            limits.append(None)
            continue
        try:
            value = float(item)
        except ValueError:
            raise SettingsError(
                f"{name} is {text!r}; expected numbers or none, separated by commas, not "
                f"{item.strip()!r}"
            ) from None
        check_limit(name, value)
        limits.append(value)
    return limits
