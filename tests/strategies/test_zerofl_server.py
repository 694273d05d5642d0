"""Whole runs through Flower's server: plain FedAvg bit for bit, and ZeroFL's own client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from flwr.common import FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters
from flwr.common import parameters_to_ndarrays as to_arrays
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import Server
from flwr.server.strategy import FedAdam, FedAvg, Strategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from strategies import RoundReport, ZeroFL
from strategies.replies import Failure
from tests.strategies.federation import (
    OK,
    Honest,
    Node,
    Toy,
    f32,
    managed,
    partition_of,
    received,
    same_bits,
)
from zerofl_flwr import RoundPlan, TrainingSettings, ZeroFLClient, sparsify
from zerofl_flwr.model_arrays import Array, get_arrays

FEATURES, CLASSES = 6, 3
START = [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


@dataclass(frozen=True)
class Learner:
    """Softmax regression in numpy on a client's own samples: plain, or as a ZeroFL client."""

    partition_id: int
    examples: int

    def __call__(self, ins: FitIns) -> FitRes:
        before, _ = received(ins.parameters)
        after = self._descend(before)
        plan = RoundPlan.from_config(ins.config)
        if plan is None:
            return FitRes(OK, ndarrays_to_parameters(after), self.examples, {})
        model = Toy(dict(zip(("weight", "bias"), before, strict=True)), masked=("weight",))
        return Honest(model, self.partition_id, self.examples).reply(plan, before, after)

    def _descend(self, arrays: Sequence[Array]) -> list[Array]:
        generator = np.random.default_rng(self.partition_id)
        inputs = generator.normal(size=(self.examples, FEATURES)).astype(np.float32)
        labels = np.eye(CLASSES, dtype=np.float32)[np.argmax(inputs[:, :CLASSES], axis=1)]
        weight, bias = (array.copy() for array in arrays)
        for _ in range(5):
            scores = inputs @ weight + bias
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = (odds / odds.sum(axis=1, keepdims=True) - labels) / f32(self.examples)
            weight -= f32(0.5) * (inputs.T @ error)
            bias -= f32(0.5) * error.sum(axis=0)
        return [weight, bias]


class InOrder(FedAvg):
    """Flower's FedAvg on replies in partition order; Flower collects them in a set."""

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Failure],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        ordered = sorted(results, key=lambda pair: partition_of(pair[0]))
        return super().aggregate_fit(server_round, ordered, failures)


def trained_by(strategy: Strategy, nodes: Sequence[Node], rounds: int = 3) -> list[Array]:
    server = Server(client_manager=managed(nodes), strategy=strategy)
    server.set_max_workers(1)  # a client seeds torch's generator, which its threads share
    server.fit(rounds, timeout=None)
    return to_arrays(server.parameters)


def learners(examples: Sequence[int]) -> list[Node]:
    return [
        Node(partition, Learner(partition, count), cid=str(900 - partition))
        for partition, count in enumerate(examples)
    ]


@pytest.mark.parametrize("aggregation", ["all-clients", "senders"])
@pytest.mark.parametrize(
    ("build", "examples"),
    [
        # Flower's own order is arbitrary, but the sum of two does not depend on it.
        (FedAvg, [37, 5]),
        (InOrder, [37, 5, 64, 8, 21]),
    ],
)
def test_without_sparsity_a_run_is_plain_fedavg(
    build: Callable[..., FedAvg], examples: list[int], aggregation: str
) -> None:
    start = ndarrays_to_parameters(START)
    plain = trained_by(build(initial_parameters=start), learners(examples))
    wrapped = FedAvg(initial_parameters=start)
    zerofl = ZeroFL(wrapped, sparsity=0, mask_ratio=0, aggregation=aggregation)
    assert same_bits(trained_by(zerofl, learners(examples)), plain)
    assert np.abs(plain[0]).max() > 0.5


@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
def test_the_same_seed_gives_the_same_run(rule: str) -> None:
    def run(seed: int) -> list[Array]:
        strategy = ZeroFL(
            FedAvg(
                initial_parameters=ndarrays_to_parameters(START),
                fraction_fit=0.5,
                fraction_evaluate=0.5,
            ),
            sparsity=0.6,
            mask_ratio=0.1,
            rule=rule,
            seed=seed,
        )
        return trained_by(strategy, learners([10, 20, 30, 40, 50, 60]))

    assert same_bits(run(7), run(7))
    assert not same_bits(run(7), run(8))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


def torch_nodes(count: int) -> list[Node]:
    """Nodes that train with ZeroFL's own client."""

    def train(client: ZeroFLClient, ins: FitIns) -> FitRes:
        return client.to_client().fit(ins)

    nodes = []
    for partition in range(count):
        generator = torch.Generator().manual_seed(partition)
        inputs = torch.randn(40, FEATURES, generator=generator)
        samples = TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))
        client = ZeroFLClient(
            sparsify(network(), 0.5, masked=["0", "3"]),
            DataLoader(samples, batch_size=8, shuffle=True),
            training=TrainingSettings(learning_rate=0.2, local_epochs=2),
            partition_id=partition,
            seed=1,
        )
        nodes.append(Node(partition, partial(train, client)))
    return nodes


@pytest.mark.parametrize("frozen_after", [None, 3])
@pytest.mark.parametrize("aggregation", ["all-clients", "senders"])
@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
def test_zerofls_own_client_learns(
    name: str, rule: str, aggregation: str, frozen_after: int | None
) -> None:
    reports: list[RoundReport] = []
    start = ndarrays_to_parameters(get_arrays(network()))
    wrapped = (
        FedAvg(initial_parameters=start, fraction_evaluate=0.0)
        if name == "FedAvg"
        else FedAdam(initial_parameters=start, fraction_evaluate=0.0, eta=0.05, tau=0.01)
    )
    strategy = ZeroFL(
        wrapped,
        sparsity=0.5,
        mask_ratio=0.1,
        rule=rule,
        aggregation=aggregation,
        freeze_mask_after_round=frozen_after,
        on_failure="raise",
        on_round=reports.append,
    )
    arrays = trained_by(strategy, torch_nodes(3), rounds=6)
    assert [layer.layer for layer in reports[0].layers] == ["0.weight", "3.weight"]
    assert strategy.model.names == list(network().state_dict())
    assert reports[-1].train_loss < 0.85 * reports[0].train_loss
    assert int(arrays[strategy.model.names.index("1.num_batches_tracked")]) == 0
    assert arrays[strategy.model.names.index("1.running_var")].min() > 0
    if frozen_after is not None:
        assert all(layer.nonzero_ratio <= 0.5 for layer in reports[-1].layers)
        assert all(layer.mask_overlap == 1 for layer in reports[-1].layers)
