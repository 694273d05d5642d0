"""AdaSplit's small federation for tests: a tiny cut network, and real clients in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import SimpleClientManager
from flwr.server.server import evaluate_clients, fit_clients
from torch import nn
from torch.utils.data import TensorDataset

from adasplit_flwr import AdaSplitClient, ShuffledBatches, SplitModel
from adasplit_flwr.activation_payload import ActivationBatch, decode_activations
from adasplit_flwr.kept_states import STATE_KEY
from adasplit_flwr.plans import ExchangePlan, TestPlan
from strategies import AdaSplit, AdaSplitRoundReport, AdaSplitTestReport
from strategies.state import State
from tests.strategies.federation import Node, managed, partition_of
from zerofl_flwr.model_arrays import Array

FEATURES, CUT, CLASSES, BATCH = 6, 5, 3, 4
NOTHING = Parameters([], "")


def tiny_split(*, seed: int = 3, dtype: torch.dtype = torch.float32) -> SplitModel:
    """Cut a network of three linear layers after the first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        client = nn.Sequential(nn.Linear(FEATURES, CUT), nn.ReLU())
        server = nn.Sequential(nn.Linear(CUT, 4), nn.ReLU(), nn.Linear(4, CLASSES))
        return SplitModel(client, nn.Linear(CUT, 3), server).to(dtype)


def samples_of(
    partition_id: int, count: int = 3 * BATCH, dtype: torch.dtype = torch.float32
) -> TensorDataset:
    generator = torch.Generator().manual_seed(50 + partition_id)
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=dtype)
    return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=generator))


class SplitNode(Node):
    """A node with a real AdaSplit client, which may spoil its replies.

    Attributes
    ----------
    spoil, spoil_test : callable or None
        Make another reply of an honest one.
    """

    def __init__(
        self,
        partition_id: int,
        *,
        split: Callable[[], SplitModel] = tiny_split,
        data: TensorDataset | None = None,
        state_dir: Path | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(partition_id, self.train_client, cid=str(1000 + partition_id))
        self.partition = partition_id
        self.data = data if data is not None else samples_of(partition_id)
        self.split = split
        self.state = RecordDict()
        self.state_dir = state_dir
        self.seed = seed
        self.spoil: Callable[[FitRes], FitRes] | None = None
        self.spoil_test: Callable[[EvaluateRes], EvaluateRes] | None = None

    def client(self) -> AdaSplitClient:
        batches = ShuffledBatches(self.data, BATCH)
        return AdaSplitClient(
            self.split(),
            batches,
            list(batches.batches_from(0, 0)),
            partition_id=self.partition,
            state=self.state,
            state_dir=self.state_dir,
            seed=self.seed,
        )

    def train_client(self, ins: FitIns) -> FitRes:
        result = self.client().to_client().fit(ins)
        return self.spoil(result) if self.spoil else result

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        self.evaluated.append(ins)
        result = self.client().to_client().evaluate(ins)
        return self.spoil_test(result) if self.spoil_test else result


def split_nodes(count: int, **options: Any) -> list[SplitNode]:
    return [SplitNode(partition_id, **options) for partition_id in range(count)]


def adasplit(split: SplitModel | None = None, **options: Any) -> AdaSplit:
    """Build a strategy for the tiny network without a local phase, unless told otherwise."""
    given = {
        "rounds": 6,
        "sample_shape": (FEATURES,),
        "num_classes": CLASSES,
        "kappa": 0.0,
        "adam_learning_rate": 0.05,
        **options,
    }
    return AdaSplit(split if split is not None else tiny_split(), **given)


@dataclass(frozen=True)
class Exchanged:
    """One round's training."""

    instructions: dict[int, FitIns]
    results: dict[int, FitRes]
    arrays: list[Array]
    metrics: dict[str, Scalar]
    report: AdaSplitRoundReport

    def plan(self, client: int) -> ExchangePlan:
        plan = ExchangePlan.from_config(self.instructions[client].config)
        assert plan is not None
        return plan

    @property
    def uploaders(self) -> list[int]:
        return [client for client in self.instructions if self.plan(client).upload]

    def batches(self, client: int) -> list[ActivationBatch]:
        """Decode what a client uploaded."""
        result, server_round = self.results[client], self.plan(client).server_round
        count = int(result.metrics["activation_arrays"])
        return decode_activations(
            result.parameters.tensors[:count],
            sender="test",
            server_round=server_round,
            activation_shape=(CUT,),
            num_classes=CLASSES,
            batch_ids=range(int(result.metrics["iterations"])),
            max_batch_size=1024,
        )


@dataclass(frozen=True)
class Evaluated:
    """One test."""

    instructions: dict[int, EvaluateIns]
    results: dict[int, EvaluateRes]
    loss: float | None
    metrics: dict[str, Scalar]
    report: AdaSplitTestReport

    def plan(self, client: int) -> TestPlan:
        plan = TestPlan.from_config(self.instructions[client].config)
        assert plan is not None
        return plan


def exchange(strategy: AdaSplit, manager: SimpleClientManager, server_round: int) -> Exchanged:
    """Play one round's training, one client at a time: torch's generator is the process's."""
    reports: list[AdaSplitRoundReport] = []
    strategy.on_round = reports.append
    pairs = strategy.configure_fit(server_round, NOTHING, manager)
    results, failures = fit_clients(pairs, max_workers=1, timeout=None, group_id=server_round)
    parameters, metrics = strategy.aggregate_fit(server_round, results, failures)
    assert parameters is not None
    return Exchanged(
        {partition_of(client): ins for client, ins in pairs},
        {partition_of(client): result for client, result in results},
        parameters_to_ndarrays(parameters),
        metrics,
        reports[0],
    )


def evaluation(strategy: AdaSplit, manager: SimpleClientManager, server_round: int) -> Evaluated:
    """Play one test."""
    reports: list[AdaSplitTestReport] = []
    strategy.on_test = reports.append
    pairs = strategy.configure_evaluate(server_round, NOTHING, manager)
    results, failures = evaluate_clients(pairs, max_workers=1, timeout=None, group_id=server_round)
    loss, metrics = strategy.aggregate_evaluate(server_round, results, failures)
    return Evaluated(
        {partition_of(client): ins for client, ins in pairs},
        {partition_of(client): result for client, result in results},
        loss,
        metrics,
        reports[0],
    )


def run_rounds(
    strategy: AdaSplit, nodes: Sequence[SplitNode], rounds: Iterable[int]
) -> list[Exchanged]:
    manager = managed(nodes)
    return [exchange(strategy, manager, server_round) for server_round in rounds]


def frozen(state: State) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return a state in a form that is equal bit for bit, or not."""
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in state.items()}


def client_arrays(node: SplitNode) -> Mapping[str, Array]:
    """Return what a client has kept since its last message."""
    record = node.state.array_records[STATE_KEY]
    return {name: np.array(array.numpy()) for name, array in record.items()}
