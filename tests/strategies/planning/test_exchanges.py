"""What exchanges take of a client's data, against walks through real batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from adasplit_flwr.batches import BEGINNING, BatchWalk, ShuffledBatches
from strategies.planning.exchanges import Exchanges, Taken, drawn_clients
from zerofl_flwr.errors import SettingsError


@given(
    samples=st.integers(1, 40),
    size=st.integers(1, 9),
    iterations=st.none() | st.integers(1, 12),
    full=st.booleans(),
)
def test_exchanges_take_what_a_client_walks_through(
    samples: int, size: int, iterations: int | None, full: bool
) -> None:
    samples = max(samples, size) if full else samples
    data = TensorDataset(torch.zeros(samples, 1), torch.zeros(samples, dtype=torch.int64))
    walk = BatchWalk(ShuffledBatches(data, size, full=full), BEGINNING, seed=0, partition_id=0)
    exchanges = Exchanges(samples, size, iterations, full)
    taken = []
    for number in range(6):
        sizes = [len(labels) for _, labels in walk.take(iterations or 0)]
        taken.append(Taken(len(sizes), sum(sizes)))
        assert exchanges.take(number) == taken[-1]
        assert exchanges.take(number + exchanges.period) == taken[-1]
        assert exchanges.least.samples <= sum(sizes) <= exchanges.most.samples


def test_sizes_are_divided_evenly() -> None:
    assert Taken(3, 11).sizes == (4, 4, 3)
    assert Taken().sizes == ()


def test_full_batches_repeat_themselves_at_once() -> None:
    assert Exchanges(12, 4, 2).period == 1
    assert Exchanges(13, 4, 2).period == 3  # 4, 4 and 5: a joined rest
    assert Exchanges(15, 4, 2).period == 2


@pytest.mark.parametrize("drawn", [0, 4, True, 1.0])
def test_more_clients_than_there_are_cannot_be_drawn(drawn: int) -> None:
    with pytest.raises(SettingsError, match="must be from 1 to 3, the number of clients"):
        drawn_clients(drawn, 3)


def test_all_clients_are_drawn_unless_told_otherwise() -> None:
    assert (drawn_clients(None, 3), drawn_clients(2, 3)) == (3, 2)
