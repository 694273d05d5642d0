"""Nodes that join late, come back, or tell the wrong partition: the run goes on without them."""

from __future__ import annotations

import pytest
from flwr.common import Code, GetPropertiesIns, GetPropertiesRes, Scalar, Status
from flwr.server.client_manager import SimpleClientManager

from strategies.cohort import Cohort
from strategies.identity import ANSWER_SECONDS
from tests.strategies.federation import Node, managed, partition_of
from zerofl_flwr.errors import ClientFailedError, SettingsError

UNUSABLE: list[Scalar] = [-1, True, "3", 3.0, b"3"]


class Fragile(Node):
    """Answers until it breaks, and again once it is well."""

    broken = False

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        result = super().get_properties(ins, timeout, group_id)
        assert timeout == ANSWER_SECONDS
        if self.broken:
            raise ValueError("its disk is full")
        return result


def broken(partition_id: int, cid: str) -> Fragile:
    node = Fragile(partition_id, cid=cid)
    node.broken = True
    return node


def held(cohort: Cohort) -> list[tuple[int, str]]:
    return [(member.partition_id, member.cid) for member in cohort.members()]


def started(*nodes: Node) -> tuple[Cohort, SimpleClientManager]:
    manager = managed(nodes)
    return Cohort(0).at(manager, 1, "fit"), manager


def test_two_nodes_with_one_partition_are_refused_at_the_start() -> None:
    with pytest.raises(
        SettingsError, match=r"nodes 22 and 33 .* partition 3; give each .* to its client as p"
    ):
        started(Node(0, cid="11"), Node(3, cid="22"), Node(3, cid="33"))


@pytest.mark.parametrize("identity", UNUSABLE)
def test_unusable_partition_ids_are_refused_at_the_start(identity: Scalar) -> None:
    with pytest.raises(SettingsError, match=r"node 77 tells partition-id .*; expected 0, 1"):
        started(Node(0), Node(identity, cid="77"))


@pytest.mark.parametrize("identity", UNUSABLE)
def test_a_newcomer_with_an_unusable_partition_id_sits_out(
    identity: Scalar, flower_log: pytest.LogCaptureFixture
) -> None:
    cohort, manager = started(Node(0), Node(1))
    newcomer = Node(identity, cid="77")
    manager.register(newcomer)
    assert held(cohort.at(manager, 2, "fit")) == [(0, "0"), (1, "1")]
    assert f"node 77 tells partition-id {identity!r}; expected 0, 1, ...; it is" in flower_log.text
    newcomer.partition_id = 5
    assert held(cohort.at(manager, 3, "fit")) == [(0, "0"), (1, "1"), (5, "77")]


def test_a_node_that_fails_to_answer_is_named() -> None:
    with pytest.raises(ClientFailedError, match=r"node 77 did not tell .*: its disk is full"):
        started(broken(0, "77"))


def test_a_node_that_fails_to_answer_sits_out_and_is_asked_once_a_round(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    late = broken(2, "77")
    cohort, manager = started(Node(0), Node(1), late)
    assert [partition_of(member) for member in cohort.sample(2)] == [0, 1]
    cohort.at(manager, 1, "evaluate")
    assert late.asked_for_properties == 1
    assert "node 77 did not tell its properties: its disk is full" in flower_log.text
    cohort.at(manager, 2, "fit")
    assert late.asked_for_properties == 2
    late.broken = False
    assert held(cohort.at(manager, 3, "fit")) == [(0, "0"), (1, "1"), (2, "77")]


def test_a_node_under_another_id_replaces_one_that_answers_no_more(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    old = Fragile(1, cid="11")
    cohort, manager = started(Node(0, cid="10"), old)
    old.broken = True
    manager.register(Node(1, cid="12"))  # node 11 is still listed
    told = []
    for server_round in (2, 3):
        assert held(cohort.at(manager, server_round, "fit")) == [(0, "10"), (1, "12")]
        told.append(flower_log.text)
    assert "node 12 takes the place of node 11, which held partition 1" in told[0]
    assert told[0] == told[1]
    assert old.asked_for_properties == 2


def test_a_newcomer_does_not_replace_a_node_that_answers(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    holder, other = Fragile(1, cid="11"), Node(0, cid="10")
    cohort, manager = started(other, holder)
    newcomer = Node(1, cid="12")
    manager.register(newcomer)
    assert held(cohort.at(manager, 2, "fit")) == [(0, "10"), (1, "11")]
    assert "node 12 says that it holds partition 1, which node 11 holds already" in flower_log.text
    cohort.at(manager, 2, "evaluate")
    assert (newcomer.asked_for_properties, other.asked_for_properties) == (1, 1)
    holder.broken = True
    assert held(cohort.at(manager, 3, "fit")) == [(0, "10"), (1, "12")]
    # Who was replaced stays out while it is listed, whatever it answers by now.
    holder.broken = False
    assert held(cohort.at(manager, 4, "fit")) == [(0, "10"), (1, "12")]


def test_a_holder_that_tells_another_partition_by_now_is_replaced() -> None:
    holder = Node(1, cid="11")
    cohort, manager = started(Node(0, cid="10"), holder)
    holder.partition_id = 4
    manager.register(Node(1, cid="12"))
    assert held(cohort.at(manager, 2, "fit")) == [(0, "10"), (1, "12")]


def test_of_two_newcomers_with_one_partition_the_first_is_taken(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    old = Fragile(1, cid="11")
    cohort, manager = started(Node(0, cid="10"), old)
    old.broken = True
    for node in (Node(1, cid="12"), Node(1, cid="13"), Node(7, cid="14"), Node(7, cid="15")):
        manager.register(node)
    assert held(cohort.at(manager, 2, "fit")) == [(0, "10"), (1, "12"), (7, "14")]
    assert "node 13 says that it holds partition 1, which node 12 holds" in flower_log.text
    assert "node 15 says that it holds partition 7, which node 14 holds" in flower_log.text


def test_a_node_whose_id_is_taken_for_a_partition_is_asked_like_any_other() -> None:
    silent = Node(None, cid="5", status=Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, ""))
    cohort, manager = started(Node(0, cid="10"), silent)
    manager.register(Node(5, cid="12"))
    assert held(cohort.at(manager, 2, "fit")) == [(0, "10"), (5, "5")]


def test_all_failing_newcomers_leave_a_running_federation_alone() -> None:
    cohort, manager = started(Node(0))
    for cid in ("77", "78"):
        manager.register(broken(1, cid))
    assert held(cohort.at(manager, 2, "fit")) == [(0, "0")]


def test_another_federation_starts_afresh() -> None:
    cohort, _ = started(Node(0))
    with pytest.raises(SettingsError, match="node 77 tells partition-id -1"):
        cohort.at(managed([Node(0), Node(-1, cid="77")]), 1, "fit")
