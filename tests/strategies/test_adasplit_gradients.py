"""With the server's gradients, and no masks, the cut network trains like the whole one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import FitRes
from torch import nn

from adasplit_flwr.gradient_payload import decode_gradients
from strategies import AdaSplit
from tests.strategies.adasplit_federation import (
    BATCH,
    CUT,
    SplitNode,
    adasplit,
    client_arrays,
    exchange,
    frozen,
    run_rounds,
    samples_of,
    split_nodes,
)
from tests.strategies.federation import managed
from tests.strategies.whole_network import batches_of, client_part_of, cut_network, network
from zerofl_flwr.errors import ClientFailedError
from zerofl_flwr.model_arrays import Array

STEPS, RATE, DECAY = 20, 0.02, 0.01
WHOLE = {
    "selection": "all",
    "mask": "none",
    "server_gradient": "selected",
    "local_loss": False,
    "iterations_per_round": 1,
    "adam_learning_rate": RATE,
    "adam_weight_decay": DECAY,
    "rounds": STEPS + 1,
}


def trained_whole(dtype: torch.dtype) -> dict[str, Array]:
    """Train the network that is not cut."""
    net = network(dtype)
    adam = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=DECAY)
    for inputs, labels in batches_of(0, samples_of(0, dtype=dtype), STEPS):
        adam.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
        adam.step()
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def trained_cut(cut: int, dtype: torch.dtype) -> dict[str, Array]:
    """Train through strategy and client; the last message only brings the last gradient."""
    strategy = adasplit(cut_network(cut, dtype), **WHOLE)
    node = SplitNode(0, split=lambda: cut_network(cut, dtype), data=samples_of(0, dtype=dtype))
    manager = managed([node])
    for server_round in range(1, STEPS + 1):
        played = exchange(strategy, manager, server_round)
    names = cut_network(cut, dtype).server.state_dict()
    server = dict(zip(names, played.arrays[-len(names) :], strict=True))
    exchange(strategy, manager, STEPS + 1)
    return {**client_part_of(node), **server}


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_every_weight_follows_the_whole_networks(cut: int) -> None:
    whole, parts = trained_whole(torch.float32), trained_cut(cut, torch.float32)
    assert list(parts) == list(whole)
    for name, array in whole.items():
        np.testing.assert_allclose(parts[name], array, rtol=2e-5, atol=2e-6)
        assert not np.allclose(array, network(torch.float32).state_dict()[name], atol=0.01)


@pytest.mark.usefixtures("double_wire")
@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_every_weight_follows_the_whole_networks_in_double_precision(cut: int) -> None:
    whole, parts = trained_whole(torch.float64), trained_cut(cut, torch.float64)
    assert list(parts) == list(whole)
    for name, array in whole.items():
        np.testing.assert_allclose(parts[name], array, rtol=0, atol=1e-10)
        assert array.dtype == np.float64


def gradients_in(strategy: AdaSplit, client: int) -> list[int]:
    return [batch_id for batch_id, _ in strategy.clients.gradients(client)]


def test_gradients_come_with_the_next_message_of_who_uploaded() -> None:
    strategy, nodes = adasplit(server_gradient="selected", eta=0.5), split_nodes(2)
    manager = managed(nodes)
    first = exchange(strategy, manager, 1)
    (picked,) = first.uploaders
    assert gradients_in(strategy, picked) == [0, 1, 2]
    assert gradients_in(strategy, 1 - picked) == []
    expected = strategy.clients.gradients(picked)
    second = exchange(strategy, manager, 2)
    assert second.plan(1 - picked).gradient_arrays == 0
    plan, ins = second.plan(picked), second.instructions[picked]
    assert plan.gradient_arrays == len(ins.parameters.tensors) > 0
    came = decode_gradients(
        ins.parameters.tensors,
        server_round=2,
        activation_shape=(CUT,),
        batch_ids=range(3),
        batch_sizes=[BATCH] * 3,
    )
    for (number, gradient), (batch_id, kept) in zip(came, expected, strict=True):
        assert number == batch_id
        np.testing.assert_array_equal(gradient, kept)
    assert gradients_in(strategy, picked) == ([0, 1, 2] if picked in second.uploaders else [])


def test_gradients_wait_for_a_client_that_is_not_asked() -> None:
    strategy = adasplit(server_gradient="selected", fraction_fit=0.25, min_available_clients=4)
    manager, waiting = managed(split_nodes(4)), set[int]()
    for server_round in range(1, 7):
        played = exchange(strategy, manager, server_round)
        (client,) = played.instructions
        assert (played.plan(client).gradient_arrays > 0) == (client in waiting)
        waiting.add(client)
        assert {c for c in range(4) if gradients_in(strategy, c)} == waiting
    assert len(waiting) > 1


def test_gradients_are_sent_again_to_a_client_whose_reply_was_lost(tmp_path: Any) -> None:
    def lost(_: FitRes) -> FitRes:
        raise ConnectionError("gone")

    options: dict[str, Any] = {"server_gradient": "selected", "selection": "all"}
    strategy, nodes = adasplit(**options), split_nodes(2, state_dir=tmp_path)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    kept = strategy.clients.gradients(1)
    nodes[1].spoil = lost
    second = exchange(strategy, manager, 2)
    assert strategy.clients.gradients(1) is kept
    nodes[1].spoil = None
    third = exchange(strategy, manager, 3)
    assert third.metrics["failures"] == 0
    for each in (second, third):
        assert each.plan(1).gradient_arrays > 0
        assert each.plan(1).state_round == 1


def test_a_client_whose_exchange_ended_early_gets_no_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy, nodes = adasplit(server_gradient="selected", selection="all"), split_nodes(2)
    honest: Callable[..., Any] = strategy.server.train_batch

    def train(client: int, *args: Any, **options: Any) -> Any:
        if client == 0 and strategy.server.state_arrays()["steps"] == 2:
            raise ClientFailedError("client 0: the loss of its batch is nan")
        return honest(client, *args, **options)

    monkeypatch.setattr(strategy.server, "train_batch", train)
    first, second = run_rounds(strategy, nodes, (1, 2))
    assert [bool(client.failure) for client in first.report.clients] == [True, False]
    assert [second.plan(client).gradient_arrays > 0 for client in (0, 1)] == [False, True]
    assert second.metrics["failures"] == 0
    assert second.plan(0).state_round == 1


@pytest.mark.parametrize(
    "options", [{"eta": 1.0}, {"eta": 1.0, "mask": "none"}, {"mask": "hard", "selection": "all"}]
)
def test_iterations_per_round_do_not_matter_when_all_are_picked(options: dict[str, Any]) -> None:
    """Without gradients that flow back, six exchanges of one batch are two of three."""

    def trained(per_round: int) -> tuple[Any, Any]:
        chosen = {"iterations_per_round": per_round, **options}
        strategy, nodes = adasplit(**chosen), split_nodes(3)
        run_rounds(strategy, nodes, range(1, 6 // per_round + 1))
        weights = [
            {k: a for k, a in frozen(dict(client_arrays(node))).items() if "weights" in k}
            for node in nodes
        ]
        state = strategy.state_arrays()
        server = {k: a for k, a in state.items() if k.startswith(("server", "trainer"))}
        # The orchestrator gets an entry for each exchange, of however many iterations.
        assert state["orchestrator/entries"] == 2 + 6 // per_round
        return frozen(server), weights

    assert trained(1) == trained(3) == trained(2)
