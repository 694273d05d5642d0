"""Server gradients and shared client parts: whatever fails, each gradient meets its own weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.common import FitIns, FitRes
from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr.plans import ExchangePlan
from adasplit_flwr.weights_payload import decode_weights, named_specs
from strategies import AdaSplit
from tests.strategies.adasplit_federation import (
    Exchanged,
    SplitNode,
    adasplit,
    client_arrays,
    exchange,
    run_rounds,
    samples_of,
    split_nodes,
    tiny_split,
)
from tests.strategies.federation import managed
from tests.strategies.gradient_witness import Witness
from zerofl_flwr.errors import ClientFailedError, RoundFailedError
from zerofl_flwr.model_arrays import Array

SPLIT = tiny_split()
SPECS = named_specs({"client": SPLIT.client, "head": SPLIT.head})
FOLLOWING: dict[str, Any] = {
    "selection": "all",
    "mask": "none",
    "server_gradient": "selected",
    "local_loss": False,
    "iterations_per_round": 1,
}


def following(weights: str, rounds: int = 12, **options: Any) -> AdaSplit:
    return adasplit(client_weights=weights, rounds=rounds, **FOLLOWING, **options)


def broken(_: FitRes) -> FitRes:
    raise ConnectionError("the line broke")


def shared(strategy: AdaSplit) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in strategy.weights.arrays.items()}


def came(played: Exchanged, client: int) -> dict[str, bytes]:
    result, server_round = played.results[client], played.plan(client).server_round
    start = int(result.metrics["activation_arrays"])
    tensors = result.parameters.tensors[start:]
    arrays = decode_weights(tensors, SPECS, server_round=server_round, sender="test")
    return {name: array.tobytes() for name, array in arrays.items()}


def steps_of(node: SplitNode) -> int:
    """Count the gradients that a client's state has taken."""
    taken: Array = client_arrays(node).get("array/steps/client.0.weight", np.array(0))
    return int(taken)


def asked(played: Exchanged, client: int) -> tuple[bool, bool, bool, int]:
    """Return whether weights and gradients came, whether it was to finish, and from which state."""
    plan = played.plan(client)
    return plan.weight_arrays > 0, plan.gradient_arrays > 0, plan.finish, plan.state_round


BEGIN, GO_ON, END = (True, False, False), (False, True, False), (False, True, True)


def test_the_messages_of_a_period() -> None:
    strategy, nodes = following("averaged", share_every=2), split_nodes(2)
    played = run_rounds(strategy, nodes, range(1, 5))
    for client in (0, 1):
        assert [asked(each, client) for each in played] == [
            (*BEGIN, 0),
            (*GO_ON, 1),
            (*END, 2),
            (*BEGIN, 3),
        ]
    assert [each.report.phase for each in played] == ["global", "global", "finish", "global"]
    finish = played[2]
    assert (finish.metrics["picked"], finish.metrics["replies"]) == (0, 2)
    assert [client.num_examples for client in finish.report.clients] == [0, 0]
    assert all(c.uplink_bytes > 0 for c in finish.report.clients)
    for figure in ("train_loss", "server_loss", "mask_density"):
        assert np.isnan(finish.metrics[figure]), figure
    assert strategy.orchestrator.exchanges == 3
    assert strategy.server.state_arrays()["steps"] == 2 * 3
    assert [steps_of(node) for node in nodes] == [2, 2]


@pytest.mark.parametrize("reply_only", [True, False])
def test_who_fails_in_a_finishing_round_is_not_averaged_and_starts_from_the_mean(
    reply_only: bool,
) -> None:
    """Whether it has taken the gradient, or never got it: it is not taken on the mean."""
    strategy, nodes = following("averaged"), split_nodes(3)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    honest = nodes[1].train
    nodes[1].spoil, nodes[1].train = (broken, honest) if reply_only else (None, broken)  # type: ignore[assignment]
    finish = exchange(strategy, manager, 2)
    assert [bool(client.failure) for client in finish.report.clients] == [False, True, False]
    mean = {
        name: sum(np.frombuffer(came(finish, c)[name], np.float32) / 2 for c in (0, 2))
        for name in SPECS
    }
    for name, array in strategy.weights.arrays.items():
        np.testing.assert_allclose(array.ravel(), mean[name], rtol=1e-6)
    assert strategy.clients.gradients(1) == []
    nodes[1].spoil, nodes[1].train = None, honest
    third = exchange(strategy, manager, 3)
    assert asked(third, 0) == (*BEGIN, 2)
    assert asked(third, 1) == (*BEGIN, 1)  # from the state before it failed, on the mean
    assert third.metrics["failures"] == 0
    exchange(strategy, manager, 4)
    assert [steps_of(node) for node in nodes] == [2, 1, 2]


def test_an_exchange_that_was_lost_is_made_up_for_within_the_period() -> None:
    strategy, nodes = following("averaged", share_every=3), split_nodes(2)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    nodes[1].spoil = broken
    exchange(strategy, manager, 2)
    nodes[1].spoil = None
    third, fourth = exchange(strategy, manager, 3), exchange(strategy, manager, 4)
    assert (asked(third, 0), asked(third, 1)) == ((*GO_ON, 2), (*GO_ON, 1))
    assert (asked(fourth, 0), asked(fourth, 1)) == ((*END, 3), (*END, 3))
    assert [steps_of(node) for node in nodes] == [3, 2]
    # Weighted by what each part has learned from: three batches, and two.
    first, second = came(fourth, 0), came(fourth, 1)
    for name, array in strategy.weights.arrays.items():
        one, other = (np.frombuffer(each[name], np.float32) for each in (first, second))
        np.testing.assert_allclose(array.ravel(), 0.6 * one + 0.4 * other, rtol=1e-6, atol=1e-7)


def test_who_lost_its_state_begins_the_period_once_again() -> None:
    strategy, nodes = following("averaged", share_every=3), split_nodes(2)
    start, manager = shared(strategy), managed(nodes)
    exchange(strategy, manager, 1)
    nodes[1].state = RecordDict()
    assert exchange(strategy, manager, 2).metrics["restarts"] == 1
    third, fourth = exchange(strategy, manager, 3), exchange(strategy, manager, 4)
    assert asked(third, 1) == (*BEGIN, 0)
    assert asked(fourth, 1) == (*END, 3)
    assert [steps_of(node) for node in nodes] == [3, 1]
    first, second = came(fourth, 0), came(fourth, 1)
    for name, array in strategy.weights.arrays.items():
        one, other = (np.frombuffer(each[name], np.float32) for each in (first, second))
        np.testing.assert_allclose(array.ravel(), 0.75 * one + 0.25 * other, rtol=1e-6, atol=1e-7)
    assert shared(strategy) != start


def test_who_lost_its_state_when_it_is_to_finish_begins_again_from_the_mean() -> None:
    strategy, nodes = following("averaged"), split_nodes(2)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    nodes[1].state = RecordDict()
    finish = exchange(strategy, manager, 2)
    assert (finish.metrics["restarts"], finish.metrics["failures"]) == (1, 1)
    assert shared(strategy) == came(finish, 0)
    third = exchange(strategy, manager, 3)
    assert (asked(third, 0), asked(third, 1)) == ((*BEGIN, 2), (*BEGIN, 0))
    assert third.metrics["failures"] == 0


def test_a_finishing_round_in_which_nobody_delivers_ends_the_run() -> None:
    strategy, nodes = following("averaged"), split_nodes(2)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    for node in nodes:
        node.spoil = broken
    with pytest.raises(
        RoundFailedError, match=r"round 2: no client delivered\. client 0: the line"
    ):
        exchange(strategy, manager, 2)


def test_a_turn_whose_exchange_fails_is_finished_with_what_it_has() -> None:
    strategy, nodes = following("relayed", share_every=4), split_nodes(2)
    manager = managed(nodes)
    for server_round in (1, 2):
        exchange(strategy, manager, server_round)
    nodes[0].spoil = broken
    assert list(exchange(strategy, manager, 3).instructions) == [0]
    nodes[0].spoil = None
    finish = exchange(strategy, manager, 4)
    assert asked(finish, 0) == (*END, 2)
    assert finish.report.phase == "finish"
    assert steps_of(nodes[0]) == 2
    assert shared(strategy) == came(finish, 0)
    assert asked(exchange(strategy, manager, 5), 1) == (*BEGIN, 0)


def test_a_turn_that_cannot_be_finished_is_given_up() -> None:
    strategy, nodes = following("relayed", share_every=2), split_nodes(2)
    manager, start = managed(nodes), shared(strategy)
    for server_round in (1, 2):
        exchange(strategy, manager, server_round)
    nodes[0].spoil = broken
    exchange(strategy, manager, 3)
    assert shared(strategy) == start
    assert strategy.clients.gradients(0) == []
    nodes[0].spoil = None
    played = [exchange(strategy, manager, server_round) for server_round in range(4, 8)]
    assert [list(each.instructions) for each in played] == [[1], [1], [1], [0]]
    assert asked(played[-1], 0) == (*BEGIN, 2)
    assert all(each.metrics["failures"] == 0 for each in played)


def test_the_next_in_turn_follows_who_lost_its_state() -> None:
    strategy, nodes = following("relayed", share_every=3), split_nodes(2)
    manager, start = managed(nodes), shared(strategy)
    exchange(strategy, manager, 1)
    nodes[0].state = RecordDict()
    assert exchange(strategy, manager, 2).metrics["restarts"] == 1
    assert shared(strategy) == start
    played = [exchange(strategy, manager, server_round) for server_round in range(3, 8)]
    assert [asked(each, 1) for each in played[:4]] == [
        (*BEGIN, 0),
        (*GO_ON, 3),
        (*GO_ON, 4),
        (*END, 5),
    ]
    assert asked(played[4], 0) == (*BEGIN, 0)
    assert shared(strategy) == came(played[3], 1)


def test_a_pass_of_turns_that_gave_nothing_ends_the_run() -> None:
    strategy, nodes = following("relayed"), split_nodes(2)
    manager = managed(nodes)

    def only_exchanges(node: SplitNode) -> Callable[[FitIns], FitRes]:
        def train(ins: FitIns) -> FitRes:
            plan = ExchangePlan.from_config(ins.config)
            assert plan is not None
            return broken(node.train_client(ins)) if plan.finish else node.train_client(ins)

        return train

    for node in nodes:
        node.train = only_exchanges(node)
    for server_round in (1, 2, 3):
        exchange(strategy, manager, server_round)
    with pytest.raises(
        RoundFailedError, match=r"round 4: no client delivered\. client 1: the line"
    ):
        exchange(strategy, manager, 4)


def test_a_client_whose_batch_taught_nothing_finishes_without_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy, nodes = following("averaged"), split_nodes(2)
    honest = strategy.server.train_batch

    def train(client: int, *args: Any, **options: Any) -> Any:
        if client == 0:
            raise ClientFailedError("client 0: the loss of its batch is nan")
        return honest(client, *args, **options)

    monkeypatch.setattr(strategy.server, "train_batch", train)
    _, finish = run_rounds(strategy, nodes, (1, 2))
    assert [finish.plan(client).gradient_arrays > 0 for client in (0, 1)] == [False, True]
    assert finish.metrics["failures"] == 0
    assert [steps_of(node) for node in nodes] == [0, 1]


def test_the_last_round_leaves_no_gradient_behind() -> None:
    strategy, nodes = following("averaged", rounds=3), split_nodes(2)
    played = run_rounds(strategy, nodes, (1, 2, 3))
    assert [each.report.phase for each in played] == ["global", "finish", "global"]
    assert all(played[2].plan(client).upload_weights for client in (0, 1))
    # A gradient of it could not be brought any more; the parts are those of the mean.
    assert [strategy.clients.gradients(client) for client in (0, 1)] == [[], []]
    assert came(played[2], 0) == came(played[2], 1) == shared(strategy)


def watched(
    weights: str, every: int, fates: Sequence[Sequence[str]]
) -> tuple[AdaSplit, Witness, list[Exchanged]]:
    """Play a run in which something happens to each client in each round."""
    strategy, nodes = following(weights, share_every=every), split_nodes(3)
    for client, node in enumerate(nodes):
        node.data = samples_of(client, (12, 10, 7)[client])
    manager, honest = managed(nodes), [node.train_client for node in nodes]
    played: list[Exchanged] = []
    with pytest.MonkeyPatch.context() as patch:
        witness = Witness(patch, strategy)
        for server_round, happens in enumerate(fates, start=1):
            for node, train, fate in zip(nodes, honest, happens, strict=True):
                node.spoil = broken if fate == "lost" else None
                node.train = broken if fate == "dead" else train  # type: ignore[assignment]
                if fate == "restarted":
                    node.state = RecordDict()
            try:
                played.append(exchange(strategy, manager, server_round))
            except RoundFailedError:
                break
    return strategy, witness, played


@pytest.mark.parametrize(
    ("weights", "every", "gradients"),
    # Six times three of them; and in twelve rounds four turns of two exchanges.
    [("averaged", 1, 18), ("relayed", 2, 8)],
)
def test_all_gradients_are_applied_if_nothing_fails(
    weights: str, every: int, gradients: int
) -> None:
    _, witness, played = watched(weights, every, [("well",) * 3] * 12)
    assert (witness.applied, witness.faults, len(played)) == (gradients, [], 12)


HAPPENS = st.sampled_from(["well"] * 6 + ["lost", "dead", "restarted"])


@given(
    weights=st.sampled_from(["averaged", "relayed"]),
    every=st.integers(1, 3),
    fates=st.lists(st.tuples(HAPPENS, HAPPENS, HAPPENS), min_size=12, max_size=12),
)
@settings(deadline=None, max_examples=12)
def test_whatever_fails_a_gradient_is_applied_to_the_weights_that_it_is_of_and_once(
    weights: str, every: int, fates: list[tuple[str, str, str]]
) -> None:
    """An applied gradient changes the weights: one that came twice would meet others."""
    strategy, witness, played = watched(weights, every, fates)
    assert witness.faults == []
    for each in played:
        for client in each.instructions:
            plan = each.plan(client)
            assert not (plan.weight_arrays and plan.gradient_arrays)
            assert plan.finish == (each.report.phase == "finish")
    if len(played) == len(fates):  # the last round ends a period, whatever becomes of it
        assert [strategy.clients.gradients(client) for client in range(3)] == [[]] * 3
