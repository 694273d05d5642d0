"""Who takes part depends on partition ids, seed, round and purpose, and on nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from flwr.common import Code, Status
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion
from hypothesis import given
from hypothesis import strategies as st

from strategies.cohort import Cohort, Purpose
from strategies.metering import Meter
from tests.strategies.federation import Node, managed, partition_of
from zerofl_flwr.errors import SettingsError


def partitions(clients: Sequence[ClientProxy]) -> list[int]:
    return [partition_of(client) for client in clients]


def sample(
    manager: SimpleClientManager,
    count: int = 4,
    *,
    seed: int = 1,
    server_round: int = 1,
    purpose: Purpose = "fit",
) -> list[int]:
    return partitions(Cohort(seed).at(manager, server_round, purpose).sample(count))


def nodes(order: Sequence[int] = range(20), offset: int = 1000) -> list[Node]:
    return [Node(i, cid=str((offset * (i + 7)) ^ 0x5A5A)) for i in order]


def test_the_same_seed_and_round_give_the_same_clients() -> None:
    assert sample(managed(nodes())) == sample(managed(nodes()))
    cohort, manager = Cohort(1), managed(nodes())
    first = partitions(cohort.at(manager, 1, "fit").sample(4))
    cohort.at(manager, 2, "fit").sample(4)
    assert partitions(cohort.at(manager, 1, "fit").sample(4)) == first


def test_seeds_rounds_and_purposes_differ() -> None:
    manager = managed(nodes())
    purposes: list[Purpose] = ["fit", "evaluate", "initialize"]
    samples = {
        (seed, server_round, purpose): tuple(
            sample(manager, seed=seed, server_round=server_round, purpose=purpose)
        )
        for seed in (0, 1, -1, 2**63)
        for server_round in (1, 2, 3)
        for purpose in purposes
    }
    # 36 draws of 4 out of 20 hold two alike once in eight tries at most; these hold none.
    assert len(set(samples.values())) == len(samples)


@given(st.permutations(range(12)), st.integers(1, 10**12), st.integers(0, 2**32))
def test_registration_order_node_ids_and_global_seeds_do_not_matter(
    order: list[int], offset: int, global_seed: int
) -> None:
    random.seed(global_seed)
    expected = sample(managed(nodes(range(12))))
    assert sample(managed(nodes(order, offset))) == expected == sorted(expected)


def test_samples_are_without_replacement_and_fair() -> None:
    manager, cohort = managed(nodes(range(10))), Cohort(3)
    counts = np.zeros(10)
    for server_round in range(1, 401):
        chosen = partitions(cohort.at(manager, server_round, "fit").sample(3))
        assert len(set(chosen)) == 3
        counts[chosen] += 1
    # Binomial with mean 120 and standard deviation 9.2.
    assert counts.min() > 80
    assert counts.max() < 160


def test_everybody_is_listed_in_partition_order() -> None:
    cohort = Cohort(0).at(managed(nodes([3, 1, 2])), 1, "fit")
    assert partitions(cohort.members()) == [1, 2, 3]
    assert partitions(list(cohort.all().values())) == [1, 2, 3]
    assert list(cohort.all()) == [member.cid for member in cohort.members()]
    assert cohort.num_available() == 3
    assert partitions(cohort.sample(3)) == [1, 2, 3]


def test_too_few_clients_give_none_and_a_warning(flower_log: pytest.LogCaptureFixture) -> None:
    cohort = Cohort(0).at(managed(nodes([0, 1])), 1, "fit")
    assert cohort.sample(3, min_num_clients=2) == []
    assert "3 clients were asked for and 2 are available" in flower_log.text
    assert cohort.sample(0) == []


def test_a_criterion_sees_partition_id_and_properties() -> None:
    class Even(Criterion):
        def select(self, client: ClientProxy) -> bool:
            return client.properties["charged"] is True and partition_of(client) % 2 == 0

    proxies = nodes(range(8))
    for proxy in proxies:
        proxy.properties["charged"] = proxy.partition_id != 4
    cohort = Cohort(0).at(managed(proxies), 1, "fit")
    assert partitions(cohort.sample(3, criterion=Even())) == [0, 2, 6]
    assert cohort.sample(4, criterion=Even()) == []


def test_partition_ids_are_asked_for_once() -> None:
    proxies = nodes(range(5))
    manager, cohort = managed(proxies), Cohort(0)
    for server_round in range(1, 6):
        cohort.at(manager, server_round, "fit").sample(2)
        cohort.at(manager, server_round, "evaluate").sample(2)
    assert [proxy.asked_for_properties for proxy in proxies] == [1] * 5
    late = Node(5, cid="5555")
    manager.register(late)
    cohort.at(manager, 6, "fit")
    assert [proxy.asked_for_properties for proxy in [*proxies, late]] == [1] * 6


def test_a_node_that_leaves_is_gone_and_may_come_back() -> None:
    proxies = nodes(range(3))
    manager, cohort = managed(proxies), Cohort(0)
    assert partitions(cohort.at(manager, 1, "fit").members()) == [0, 1, 2]
    manager.unregister(proxies[1])
    assert partitions(cohort.at(manager, 2, "fit").members()) == [0, 2]
    manager.register(proxies[1])
    assert partitions(cohort.at(manager, 3, "fit").members()) == [0, 1, 2]
    # A restarted node has a new id and the same partition.
    manager.unregister(proxies[1])
    manager.register(Node(1, cid="999999"))
    cohort.at(manager, 4, "fit")
    assert partitions(cohort.members()) == [0, 1, 2]
    assert cohort.members()[1].cid == "999999"


def test_a_node_that_came_back_between_two_rounds_is_asked_again() -> None:
    old, new = Node(1, cid="11"), Node(6, cid="11")
    manager, cohort = managed([Node(0, cid="10"), old]), Cohort(0)
    cohort.at(manager, 1, "fit")
    manager.unregister(old)
    manager.register(new)
    assert partitions(cohort.at(manager, 2, "fit").members()) == [0, 6]
    assert cohort.members()[1].proxy is new


@pytest.mark.parametrize(
    "node",
    [
        Node(None, cid="77"),
        Node(5, cid="77", status=Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, "not implemented")),
    ],
    ids=["says nothing", "cannot answer"],
)
def test_a_node_without_partition_id_goes_by_its_node_id(
    node: Node, flower_log: pytest.LogCaptureFixture
) -> None:
    cohort = Cohort(0).at(managed([Node(0, cid="11"), node]), 1, "fit")
    assert partitions(cohort.members()) == [0, 77]
    assert "node 77 tells no partition-id" in flower_log.text


def test_a_cohort_without_a_manager_is_an_error() -> None:
    with pytest.raises(SettingsError, match="no client manager"):
        Cohort(0).register(Node(0))


def test_registration_goes_to_flowers_manager() -> None:
    manager, node = managed([Node(0)]), Node(1)
    cohort = Cohort(0).at(manager, 1, "fit")
    assert cohort.register(node)
    assert not cohort.register(node)
    assert partitions(cohort.at(manager, 2, "fit").members()) == [0, 1]
    cohort.unregister(node)
    assert set(manager.all()) == {"0"}


def test_only_the_sampled_are_metered_and_only_in_their_round() -> None:
    manager, cohort, meter = managed(nodes(range(6))), Cohort(0), Meter()
    chosen = partitions(cohort.at(manager, 1, "fit", meter).sample(2))
    metered = [m.partition_id for m in cohort.members() if m.meter is meter]
    assert metered == chosen
    cohort.at(manager, 1, "evaluate")
    assert [member.meter for member in cohort.members()] == [None] * 6


def test_drawing_again_in_a_round_gives_others_and_repeats_by_seed() -> None:
    manager = managed([Node(number) for number in range(30)])
    draws = []
    for _ in range(2):
        cohort = Cohort(5).at(manager, 1, "fit")
        draws.append([partitions(cohort.sample(5)) for _ in range(3)])
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws[0]}) == 3
