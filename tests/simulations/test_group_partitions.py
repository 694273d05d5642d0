from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.data_settings import DataSettings
from simulations.group_partitions import divide_groups, group_numbers
from simulations.partitions import divide
from simulations.prepared import Prepared
from zerofl_flwr.errors import DataError, SettingsError

NAMES = ["data set a", "data set b", "data set c"]
THREE = DataSettings(dataset="a,b,c", partitioner="dataset", num_clients=3)


def table(class_names: list[str], labels: list[int], datasets: list[int]) -> Prepared:
    arrays = {"labels": np.array(labels), "datasets": np.array(datasets)}
    return Prepared(key="", meta={"class_names": class_names}, arrays=arrays)


def test_each_client_gets_a_data_set() -> None:
    groups = np.array([0] * 4 + [1] * 5 + [2] * 6)
    parts = divide_groups(groups, NAMES, THREE)
    assert [sorted(part) for part in parts] == [[*range(4)], [*range(4, 9)], [*range(9, 15)]]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(6, 40), min_size=3, max_size=3),
    turns=st.integers(1, 3),
    wanted=st.sampled_from([None, 1, 5, 12]),
    seed=st.integers(0, 2**31),
)
def test_clients_of_a_group_divide_it_evenly(
    sizes: list[int], turns: int, wanted: int | None, seed: int
) -> None:
    groups = np.random.default_rng(seed).permutation(np.repeat([0, 1, 2], sizes))
    asked = replace(THREE, num_clients=3 * turns, samples_per_client=wanted, seed=seed)
    parts = divide_groups(groups, NAMES, asked)
    assert len(parts) == 3 * turns
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == together.size
    for client, part in enumerate(parts):
        assert part.dtype == np.int64
        assert set(groups[part]) == {client % 3}
    for group, size in enumerate(sizes):
        shares = [len(parts[client]) for client in range(group, 3 * turns, 3)]
        if wanted is None:
            assert sum(shares) == size
            assert max(shares) - min(shares) <= 1
        else:
            assert all(share in (wanted, *{size // turns, -(-size // turns)}) for share in shares)
            assert max(shares) <= wanted
    again = divide_groups(groups, NAMES, asked)
    assert all(map(np.array_equal, parts, again))


def test_seed_changes_the_samples_and_other_groups_do_not() -> None:
    asked = replace(THREE, samples_per_client=10)
    groups = np.repeat([0, 1, 2], [40, 50, 60])
    parts = divide_groups(groups, NAMES, asked)
    other = divide_groups(groups, NAMES, replace(asked, seed=1))
    assert not np.array_equal(parts[0], other[0])
    fewer = divide_groups(np.repeat([0, 1, 2], [40, 30, 60]), NAMES, asked)
    assert parts[0].tolist() == fewer[0].tolist()
    # A data set alone, with partitioner iid and one client, gives the same samples.
    alone = divide(np.zeros(40, np.int64), DataSettings(num_clients=1, samples_per_client=10))
    assert parts[0].tolist() == alone[0].tolist()


def test_samples_per_client_is_a_cap_for_data_sets_only() -> None:
    groups = np.repeat([0, 1], [8, 20])
    asked = DataSettings(dataset="a,b", partitioner="dataset", num_clients=2, samples_per_client=10)
    assert [part.size for part in divide_groups(groups, NAMES[:2], asked)] == [8, 10]
    by_class = DataSettings(partitioner="classes", num_clients=2, samples_per_client=10)
    with pytest.raises(DataError, match="1 clients that divide the classes x need at least 10 tr"):
        divide_groups(groups, ["the classes x", "the classes y"], by_class)


def test_an_empty_share_is_refused() -> None:
    asked = replace(THREE, num_clients=6)
    with pytest.raises(
        DataError, match=r"2 clients that divide data set b need at least 1 .* are 1"
    ):
        divide_groups(np.array([0, 0, 1, 2, 2]), NAMES, asked)
    with pytest.raises(DataError, match=r"data set c need at least 1 .* there are 0"):
        divide_groups(np.array([0, 1]), NAMES, THREE)


def test_groups_are_the_data_sets_or_the_classes_in_their_order() -> None:
    source = table(list("abcdef"), [5, 0, 3, 2, 1, 4], [0, 0, 1, 1, 2, 2])
    groups, names = group_numbers(THREE, source)
    assert groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert names == NAMES
    by_class = DataSettings(partitioner="classes", num_clients=6, classes_per_client=2)
    groups, names = group_numbers(by_class, source)
    assert groups.tolist() == [2, 0, 1, 1, 0, 2]
    assert names == ["the classes a, b", "the classes c, d", "the classes e, f"]


@pytest.mark.parametrize(
    ("clients", "size", "message"),
    [
        (3, 4, "classes_per_client is 4, but 6 classes do not divide by it"),
        (1, 12, "classes_per_client is 12, but 6 classes do not divide by it"),
        (4, 2, "num_clients is 4, but 6 classes .* 2 are for 3 clients, or a multiple"),
        (1, 2, "num_clients is 1, but 6 classes .* 2 are for 3 clients, or a multiple"),
    ],
)
def test_classes_that_do_not_divide_are_refused(clients: int, size: int, message: str) -> None:
    asked = DataSettings(partitioner="classes", num_clients=clients, classes_per_client=size)
    with pytest.raises(SettingsError, match=message):
        group_numbers(asked, table(list("abcdef"), [0], [0]))
