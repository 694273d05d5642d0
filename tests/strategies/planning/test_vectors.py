"""Rows of costs, and the most of some of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strategies.planning.vectors import most, number_size, promised, row_of, spent
from strategies.traffic import Breakdown

TABLES = st.lists(st.lists(st.integers(-50, 50), min_size=2, max_size=2), min_size=1, max_size=5)


@given(table=TABLES, data=st.data())
def test_no_choice_of_clients_takes_more_than_the_most(
    table: list[list[int]], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(table)))
    row, exact = most(np.array(table), count)
    sums = [np.array(chosen).sum(axis=0) for chosen in combinations(table, count) if chosen]
    expected = np.max(sums, axis=0) if sums else np.zeros(2)
    assert row.tolist() == expected.tolist()
    assert not exact or all((one == row).all() for one in sums)


def test_equal_clients_and_all_clients_are_exact() -> None:
    assert most(np.array([[1, 2], [1, 2]]), 1)[1]
    assert most(np.array([[1, 2], [1, 3]]), 2)[1]
    assert not most(np.array([[1, 2], [1, 3]]), 1)[1]


def test_a_row_is_read_as_it_was_written() -> None:
    down, up = Breakdown(weights=3, protocol=4, counted=12), Breakdown(activations=5, indices=6)
    row = row_of(down, up, trained=7, client_ops=8, server_ops=9, least_steps=-2)
    told = spent(row)
    assert (told.down, told.up) == (down, up)
    assert (told.trained, told.ops, told.learned) == (7, 17, 0)
    assert (told.downlink_bytes, told.uplink_bytes, told.bytes) == (7, 11, 18)
    assert promised(row, "least_steps") == 2


def test_numbers_are_as_long_as_their_digits() -> None:
    assert [number_size(n) for n in (0, 9, 10, 99)] == [(1, 0), (1, 4), (2, 4), (2, 7)]
