"""A small federation for tests: Flower's own classes, real payloads, nodes in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.common import (
    Code,
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    ReconnectIns,
    Scalar,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import fit_clients
from flwr.server.strategy import Strategy
from numpy.typing import NDArray

from strategies import ZeroFL
from zerofl_flwr.payload import NotSent, SparseArray, Values, decode, encode, is_payload
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.uplink import uplink_entries, uploaded_fraction

Array = NDArray[Any]
Train = Callable[[FitIns], FitRes]
OK = Status(Code.OK, "Success")


@dataclass(frozen=True)
class Toy:
    """A model as names and arrays, and which of them are masked."""

    arrays: dict[str, Array]
    masked: tuple[str, ...] = ("conv.weight", "fc.weight")

    @property
    def names(self) -> list[str]:
        return list(self.arrays)

    @property
    def values(self) -> list[Array]:
        return list(self.arrays.values())

    @property
    def parameters(self) -> Parameters:
        return ndarrays_to_parameters(self.values)

    @property
    def masked_positions(self) -> list[int]:
        return [self.names.index(name) for name in self.masked]


def f32(values: object) -> Array:
    """Write a float32 array."""
    return np.array(values, np.float32)


def toy(dtype: str = "float32", *, batch_norm: bool = False, seed: int = 0, width: int = 1) -> Toy:
    """Two masked layers and their biases; with BatchNorm's buffers between them on request."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return generator.normal(size=shape).astype(dtype)

    channels = 4 * width
    arrays = {"conv.weight": normal(channels, 3, 3, 3), "conv.bias": normal(channels)}
    if batch_norm:
        arrays["bn.running_mean"] = normal(channels)
        arrays["bn.running_var"] = np.abs(normal(channels)) + np.asarray(0.5, dtype)
        arrays["bn.num_batches_tracked"] = np.array(7, np.int64)
    arrays |= {"fc.weight": normal(5, 9 * channels), "fc.bias": normal(5)}
    return Toy(arrays)


class Node(ClientProxy):
    """A node in this process: tells its partition id, and answers training with a function."""

    def __init__(
        self,
        partition_id: Scalar | None,
        train: Train | None = None,
        *,
        cid: str | None = None,
        status: Status = OK,
    ) -> None:
        super().__init__(str(partition_id) if cid is None else cid)
        self.node_id = 0
        self.partition_id = partition_id
        self.train = train
        self.status = status
        self.asked_for_properties = 0
        self.evaluated: list[EvaluateIns] = []
        self.time_to_tell_model: float | None = None

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        self.asked_for_properties += 1
        known = {} if self.partition_id is None else {"partition-id": self.partition_id}
        return GetPropertiesRes(self.status, known)

    def get_parameters(
        self, ins: GetParametersIns, timeout: float | None, group_id: int | None
    ) -> GetParametersRes:
        self.time_to_tell_model = timeout
        return GetParametersRes(self.status, toy(seed=100 + int(self.cid)).parameters)

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        if self.train is None:
            raise NotImplementedError("this node does not train")
        return self.train(ins)

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        self.evaluated.append(ins)
        return EvaluateRes(OK, float(self.cid), 10, {})

    def reconnect(
        self, ins: ReconnectIns, timeout: float | None, group_id: int | None
    ) -> DisconnectRes:
        return DisconnectRes("")


def managed(nodes: Iterable[ClientProxy]) -> SimpleClientManager:
    """Register nodes with Flower's own client manager."""
    manager = SimpleClientManager()
    for node in nodes:
        manager.register(node)
    return manager


def zerofl(strategy: Strategy | None = None, **options: Any) -> ZeroFL:
    """Build a strategy that uploads a tenth of each masked layer."""
    return ZeroFL(strategy, **{"sparsity": 0.9, "mask_ratio": 0.0, **options})


def plan_of(ins: FitIns | EvaluateIns) -> RoundPlan:
    plan = RoundPlan.from_config(ins.config)
    assert plan is not None
    return plan


def received(parameters: Parameters) -> tuple[list[Array], dict[int, NDArray[np.int64]]]:
    """Decode a downlink: dense arrays, and the positions of what came as CSR."""
    if not is_payload(parameters.tensors):
        return parameters_to_ndarrays(parameters), {}
    entries = decode(parameters.tensors, None, sender="server").entries
    patterns = {
        position: entry.data.flat_indices
        for position, entry in enumerate(entries)
        if isinstance(entry.data, SparseArray)
    }
    return [densified(entry.data) for entry in entries], patterns


def densified(data: object, pattern: NDArray[np.int64] | None = None) -> Array:
    """Return what an entry holds as a dense array, zero where nothing was sent."""
    if isinstance(data, SparseArray):
        return data.to_dense()
    if isinstance(data, Values):
        assert pattern is not None
        dense = np.zeros(data.shape, data.values.dtype)
        dense.reshape(-1)[pattern] = data.values
        return dense
    if isinstance(data, NotSent):
        return np.zeros(data.shape, data.dtype)
    assert isinstance(data, np.ndarray)
    return data


def trained(arrays: Sequence[Array], *seeds: int) -> list[Array]:
    """Move the floats of a model a little, in a way that depends on the seeds alone."""
    generator = np.random.default_rng([*seeds])
    moved = []
    for array in arrays:
        step = generator.normal(scale=0.3, size=array.shape)
        if np.issubdtype(array.dtype, np.floating):
            moved.append(np.asarray(array + step, dtype=array.dtype))
        else:
            moved.append(np.asarray(array + 1, dtype=array.dtype))
    return moved


@dataclass(frozen=True)
class Honest:
    """Trains and replies as a ZeroFL client does."""

    model: Toy
    partition_id: int
    examples: int = 10
    metrics: dict[str, Scalar] = field(default_factory=dict)

    def __call__(self, ins: FitIns) -> FitRes:
        plan = plan_of(ins)
        before, patterns = received(ins.parameters)
        after = trained(before, plan.server_round, self.partition_id)
        return self.reply(plan, before, after, patterns if plan.frozen else {})

    def reply(
        self,
        plan: RoundPlan,
        before: Sequence[Array],
        after: Sequence[Array],
        patterns: Mapping[int, NDArray[np.int64]] | None = None,
    ) -> FitRes:
        names = self.model.names
        entries = uplink_entries(
            names,
            before,
            after,
            masked=self.model.masked,
            rule=plan.rule,
            keep=uploaded_fraction(plan.sparsity, plan.mask_ratio),
            patterns={names[position]: where for position, where in (patterns or {}).items()},
        )
        masked = ",".join(str(position) for position in self.model.masked_positions)
        payload = encode(entries, {"round": plan.server_round, "masked": masked})
        return FitRes(OK, ndarrays_to_parameters(payload), self.examples, dict(self.metrics))


def honest_nodes(model: Toy, examples: Sequence[int]) -> list[Node]:
    """Make one honest node a partition, with these sample counts."""
    return [
        Node(partition_id, Honest(model, partition_id, count), cid=str(1000 + partition_id))
        for partition_id, count in enumerate(examples)
    ]


@dataclass(frozen=True)
class Played:
    """What went down and came up in a round, and what the strategy made of it."""

    instructions: dict[int, FitIns]
    results: dict[int, FitRes]
    parameters: Parameters
    metrics: dict[str, Scalar]

    @property
    def arrays(self) -> list[Array]:
        return parameters_to_ndarrays(self.parameters)


def play(
    strategy: Strategy, manager: SimpleClientManager, parameters: Parameters, server_round: int
) -> Played:
    """Play one round of training as Flower's server does, replies in whatever order they come."""
    pairs = strategy.configure_fit(server_round, parameters, manager)
    results, failures = fit_clients(pairs, max_workers=4, timeout=None, group_id=server_round)
    new, metrics = strategy.aggregate_fit(server_round, results, failures)
    assert new is not None
    return Played(
        {partition_of(client): ins for client, ins in pairs},
        {partition_of(client): result for client, result in results},
        new,
        metrics,
    )


def partition_of(client: ClientProxy) -> int:
    partition_id = getattr(client, "partition_id", None)
    assert isinstance(partition_id, int)
    return partition_id


def same_bits(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Say whether two models are equal to the last bit, dtypes included."""
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(first, second, strict=True)
    )
