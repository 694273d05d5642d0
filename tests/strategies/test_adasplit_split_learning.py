"""SL-basic, SplitFed and the frozen client, by settings of AdaSplit, against plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adasplit_flwr import SplitModel
from adasplit_flwr.split import split_sequential
from strategies import AdaSplit
from tests.strategies.adasplit_federation import (
    SplitNode,
    adasplit,
    client_arrays,
    run_rounds,
    samples_of,
    split_nodes,
)
from tests.strategies.whole_network import (
    batches_of,
    client_part_of,
    network,
    normalised_network,
)
from zerofl_flwr.model_arrays import Array

DOUBLE = torch.float64
STEPS, RATE, DECAY = 20, 0.02, 0.01
SIZES = (12, 10, 7)  # in batches of four: 4 4 4, 4 4 2, and 4 3
SPLIT_LEARNING: dict[str, Any] = {
    "selection": "all",
    "mask": "none",
    "server_gradient": "selected",
    "local_loss": False,
    "iterations_per_round": 1,
    "adam_learning_rate": RATE,
    "adam_weight_decay": DECAY,
}
Network = Callable[[torch.dtype], nn.Sequential]
Batch = tuple[torch.Tensor, torch.Tensor]


def batches(client: int) -> Iterator[Batch]:
    return iter(batches_of(client, samples_of(client, SIZES[client], DOUBLE), 40))


def adam(module: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=RATE, weight_decay=DECAY)


def train_on(batch: Batch, net: nn.Module, *optimizers: torch.optim.Adam) -> None:
    net.zero_grad()
    nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        optimizer.step()


def by_name(net: nn.Module) -> dict[str, Array]:
    return {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}


def play(
    make: Network, cut: int, clients: int, rounds: int, **options: Any
) -> tuple[dict[str, Array], AdaSplit, list[str]]:
    """Train through strategy and clients; return the shared network as one."""

    def split() -> SplitModel:
        return split_sequential(make(DOUBLE), cut, sample_shape=(6,), projection_dim=4)

    nodes = [
        SplitNode(client, split=split, data=samples_of(client, SIZES[client], DOUBLE))
        for client in range(clients)
    ]
    strategy = adasplit(split(), rounds=rounds, **SPLIT_LEARNING, **options)
    played = run_rounds(strategy, nodes, range(1, rounds + 1))
    assert all(each.metrics["failures"] == 0 for each in played)
    client = {
        name.removeprefix("client."): array
        for name, array in strategy.weights.arrays.items()
        if name.startswith("client.")
    }
    phases = [each.report.phase for each in played]
    return {**client, **strategy.server.shared_state()}, strategy, phases


def assert_same_network(trained: dict[str, Array], expected: dict[str, Array]) -> None:
    assert list(trained) == list(expected)
    for name, array in expected.items():
        if not name.endswith("num_batches_tracked"):  # which counts at each client
            np.testing.assert_allclose(trained[name], array, rtol=0, atol=1e-10, err_msg=name)
            assert array.dtype == np.float64


@pytest.mark.usefixtures("double_wire")
@pytest.mark.parametrize(
    ("make", "cut", "every"),
    [(network, 1, 1), (network, 3, 5), (normalised_network, 2, 4), (normalised_network, 3, 1)],
)
def test_one_client_of_sl_basic_trains_the_whole_network(
    make: Network, cut: int, every: int
) -> None:
    """Parts and optimizers stand where those of the uncut network stand."""
    net, source = make(DOUBLE), batches(0)
    whole = adam(net)
    for _ in range(STEPS):
        train_on(next(source), net, whole)
    rounds = STEPS // every * (every + 1)
    trained, strategy, phases = play(
        make, cut, 1, rounds, client_weights="relayed", share_every=every
    )
    assert_same_network(trained, by_name(net))
    assert phases == (["global"] * every + ["finish"]) * (STEPS // every)
    start = make(DOUBLE).state_dict()
    assert not np.allclose(trained["0.weight"], start["0.weight"], atol=0.05)
    moments = strategy.server.state_arrays()
    for name, parameter in net[cut:].named_parameters():
        expected = whole.state[parameter]["exp_avg_sq"].numpy()
        np.testing.assert_allclose(moments[f"exp_avg_sq/{name}"], expected, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("double_wire")
@pytest.mark.parametrize(("make", "every"), [(network, 1), (network, 5), (normalised_network, 2)])
def test_clients_of_sl_basic_train_the_whole_network_in_turn(make: Network, every: int) -> None:
    """The same sequence of batches through one network; each client has an Adam of its own."""
    cut, clients, net = 3, 3, make(DOUBLE)
    sources, server = [batches(client) for client in range(clients)], adam(net[cut:])
    own = [adam(net[:cut]) for _ in range(clients)]
    for turn in range(STEPS // every):
        client = turn % clients
        for _ in range(every):
            train_on(next(sources[client]), net, own[client], server)
    rounds = STEPS // every * (every + 1)
    trained, _, _ = play(make, cut, clients, rounds, client_weights="relayed", share_every=every)
    assert_same_network(trained, by_name(net))


@pytest.mark.usefixtures("double_wire")
@pytest.mark.parametrize(("make", "every"), [(network, 1), (network, 5), (normalised_network, 2)])
def test_splitfed_trains_copies_and_averages_them_by_samples(make: Network, every: int) -> None:
    cut, start = 2, make(DOUBLE)
    server, sources = start[cut:], [batches(client) for client in range(3)]
    copies = [copy.deepcopy(start[:cut]) for _ in range(3)]
    server_adam, own = adam(server), [adam(part) for part in copies]
    for _ in range(STEPS // every):
        samples = [0, 0, 0]
        for _ in range(every):
            for client, part in enumerate(copies):
                batch = next(sources[client])
                samples[client] += len(batch[1])
                train_on(batch, nn.Sequential(part, server), own[client], server_adam)
        parts = [by_name(part) for part in copies]
        mean = {
            name: sum(n * part[name] for n, part in zip(samples, parts, strict=True)) / sum(samples)
            for name in parts[0]
            if not name.endswith("num_batches_tracked")
        }
        for part in copies:
            tensors = {name: torch.tensor(array) for name, array in mean.items()}
            part.load_state_dict(tensors, strict=False)
    rounds = STEPS // every * (every + 1)
    trained, _, phases = play(make, cut, 3, rounds, client_weights="averaged", share_every=every)
    whole = nn.Sequential(*copies[0].children(), *server.children())
    assert_same_network(trained, by_name(whole))
    assert phases == (["global"] * every + ["finish"]) * (STEPS // every)
    if every > 2:  # otherwise they differ in their Adam alone
        assert len(set(samples)) > 1


@pytest.mark.parametrize("make", [network, normalised_network])
def test_a_frozen_client_part_stays_as_it_began(make: Network) -> None:
    """Only the masks and the server part learn, behind random features."""

    def split() -> SplitModel:
        return split_sequential(make(torch.float32), 2, sample_shape=(6,), projection_dim=4)

    strategy = adasplit(split(), local_loss=False, rounds=6)  # kappa is 0
    nodes = split_nodes(3, split=split)
    played = run_rounds(strategy, nodes, range(1, 7))
    start, common = by_name(split().client), dict(strategy.weights.arrays)
    for node in nodes:
        part = client_part_of(node)
        running = [name for name in part if "running" in name or "num_batches" in name]
        for name, array in part.items():
            unchanged = array.tobytes() == start[name].tobytes()
            assert unchanged == (name not in running), name
        assert bool(running) == (make is normalised_network)
        assert not any("exp_avg" in name for name in client_arrays(node))
    assert all(common[f"client.{name}"].tobytes() == a.tobytes() for name, a in start.items())
    assert all(len(each.uploaders) == 2 and each.metrics["failures"] == 0 for each in played)
    assert played[-1].report.server_loss < played[0].report.server_loss
    server = split().server.state_dict()
    for name, array in strategy.server.shared_state().items():
        assert not np.array_equal(array, server[name].numpy()), name
    assert strategy.server.clients() == [0, 1, 2]
