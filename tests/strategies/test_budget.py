"""Limits of a run, and which of them cannot be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from strategies import Budget
from zerofl_flwr.errors import SettingsError


def test_limits_of_clients() -> None:
    budget = Budget(client_bytes={0: 5, 3: 0}, client_multiply_adds=1e9)
    assert [budget.bytes_of(client) for client in range(4)] == [5, math.inf, math.inf, 0]
    assert [budget.multiply_adds_of(client) for client in (0, 9)] == [1e9, 1e9]
    assert Budget().bytes_of(0) == Budget().multiply_adds_of(7) == math.inf


def test_a_mapping_is_copied() -> None:
    limits = {0: 5.0}
    budget = Budget(client_bytes=limits)
    limits[0] = 9.0
    assert budget.bytes_of(0) == 5


@pytest.mark.parametrize("name", ["bytes", "multiply_adds", "client_bytes", "client_multiply_adds"])
@pytest.mark.parametrize("value", [-1, 1.5, math.nan, math.inf, "5", True])
def test_what_is_no_limit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is .*whole number from 0"):
        Budget(**{name: value})
    if name.startswith("client"):
        limits: dict[str, Any] = {name: {2: value}}
        with pytest.raises(SettingsError, match=f"^{name} of client 2 is"):
            Budget(**limits)


@pytest.mark.parametrize("client", [-1, "0", 1.0, True])
def test_partition_ids_are_whole_numbers(client: Any) -> None:
    with pytest.raises(SettingsError, match="client_bytes names client"):
        Budget(client_bytes={client: 5})


def test_clients_that_are_not_there_are_named() -> None:
    budget = Budget(client_multiply_adds={1: 5, 8: 5, 4: 2})
    budget.check_clients(range(9))
    Budget(client_bytes=5).check_clients([])
    with pytest.raises(
        SettingsError, match="client_multiply_adds names client 4, but the clients are 0, 1"
    ):
        budget.check_clients({1: (), 0: ()})
