"""A small cut network, data for it, and messages to its clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.common import Scalar
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adasplit_flwr.activation_payload import ActivationBatch, decode_activations
from adasplit_flwr.batches import ShuffledBatches
from adasplit_flwr.client import AdaSplitClient
from adasplit_flwr.client_state import ClientState
from adasplit_flwr.kept_states import STATE_KEY
from adasplit_flwr.plans import ExchangePlan, TestPlan
from adasplit_flwr.split import SplitModel, split_sequential
from adasplit_flwr.weights_payload import encode_server_part, encode_weights, named_arrays
from zerofl_flwr.payload import read_npy

Arrays = list[NDArray[Any]]
Reply = tuple[Arrays, int, dict[str, Scalar]]
Batch = tuple[torch.Tensor, torch.Tensor]

SHAPE = (1, 4, 4)
ACTIVATION = (4, 4, 4)
CLASSES = 3
SAMPLES = 22
BATCH = 4

PLAN = ExchangePlan(
    run="a-run",
    server_round=1,
    state_round=0,
    iterations=2,
    finish=False,
    upload=True,
    upload_weights=True,
    weight_arrays=0,
    gradient_arrays=0,
    learning_rate=0.01,
    weight_decay=0.001,
    local_loss=True,
    temperature=0.5,
    activation_penalty=0.001,
    precision="float32",
)


def small_split(seed: int = 11, dtype: torch.dtype = torch.float32) -> SplitModel:
    """Give a cut network with batch norm and dropout at the client, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        ).to(dtype)
    return split_sequential(net, cut=4, projection_dim=8, seed=seed)


NEXT = dataclasses.replace(PLAN, server_round=3, state_round=2)
TEST = TestPlan(
    run="a-run", server_round=2, state_round=2, upload=False, weight_arrays=0, server_arrays=0
)
SERVER = small_split(21).server


def data_of(partition_id: int, samples: int = SAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(partition_id)
    inputs = torch.randn(samples, *SHAPE, generator=generator)
    return TensorDataset(inputs, torch.randint(CLASSES, (samples,), generator=generator))


def shuffled(partition_id: int) -> ShuffledBatches:
    return ShuffledBatches(data_of(partition_id), BATCH)


def loader(partition_id: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(data_of(partition_id), batch_size=BATCH, shuffle=True)


def client_of(
    partition_id: int,
    state: RecordDict,
    *,
    split: SplitModel | None = None,
    state_dir: Path | None = None,
    **options: Any,
) -> AdaSplitClient:
    given: dict[str, Any] = {
        "train_batches": shuffled(partition_id),
        "validation_batches": DataLoader(data_of(100 + partition_id), batch_size=5),
        "seed": 7,
        **options,
    }
    return AdaSplitClient(
        split or small_split(99),
        partition_id=partition_id,
        state=state,
        state_dir=state_dir,
        **given,
    )


def start_weights(split: SplitModel | None = None, server_round: int = 1) -> Arrays:
    """Encode the weights that clients start from, which are not those of their own models."""
    split = split or small_split()
    parts = {"client": split.client, "head": split.head}
    return encode_weights(named_arrays(parts), server_round=server_round)


def fit(
    client: AdaSplitClient,
    plan: ExchangePlan,
    weights: Sequence[NDArray[Any]] = (),
    gradients: Sequence[NDArray[Any]] = (),
) -> Reply:
    """Send a training message whose plan counts its arrays."""
    counted = dataclasses.replace(plan, weight_arrays=len(weights), gradient_arrays=len(gradients))
    return client.fit([*weights, *gradients], {**counted.to_config()})


def activations_in(reply: Reply, sizes: Sequence[int]) -> list[ActivationBatch]:
    arrays, _, metrics = reply
    return decode_activations(
        arrays[: int(metrics["activation_arrays"])],
        sender="client",
        server_round=int(metrics["round"]),
        activation_shape=ACTIVATION,
        num_classes=CLASSES,
        batch_ids=range(len(sizes)),
        max_batch_size=max(sizes),
    )


def state_in(record: RecordDict) -> ClientState:
    arrays = record.array_records[STATE_KEY]
    return ClientState.from_arrays({name: array.numpy() for name, array in arrays.items()})


def play(state: RecordDict, rounds: int = 2, **options: Any) -> Reply:
    """Let client 3 take some rounds, each time as a new object on a new model."""
    for server_round in range(1, rounds + 1):
        plan = dataclasses.replace(PLAN, server_round=server_round, state_round=server_round - 1)
        weights = start_weights() if server_round == 1 else ()
        reply = fit(client_of(3, state, **options), plan, weights)
    return reply


def evaluated(
    client: AdaSplitClient, plan: TestPlan = TEST, weights: Arrays | None = None, **changes: Any
) -> tuple[float, int, dict[str, Scalar]]:
    """Send a test message, with a server part unless activations are asked for."""
    server_part: Arrays = []
    if not changes.get("upload", plan.upload):
        server_part = encode_server_part(SERVER.state_dict(), server_round=plan.server_round)
    counts = {"weight_arrays": len(weights or []), "server_arrays": len(server_part)}
    counted = dataclasses.replace(plan, **counts | changes)
    return client.evaluate([*(weights or []), *server_part], {**counted.to_config()})


def uploaded_test(
    reply: tuple[float, int, dict[str, Scalar]], server_round: int = 2
) -> list[ActivationBatch]:
    """Decode what a test with upload gave, for batches of five samples."""
    loss, samples, metrics = reply
    payload = []
    for number in range(len(metrics) - 1):
        array = metrics[f"payload-{number}"]
        assert isinstance(array, bytes)
        payload.append(read_npy(array))
    sizes = [5] * (samples // 5) + [samples % 5]
    assert (loss, metrics["batches"]) == (0.0, len(sizes))
    counted: dict[str, Scalar] = {"activation_arrays": len(payload), "round": server_round}
    return activations_in((payload, samples, counted), sizes)


def same_arrays(first: Any, second: Any) -> bool:
    """Say whether two mappings or lists of arrays are the same bit for bit."""
    if isinstance(first, list):
        first, second = dict(enumerate(first)), dict(enumerate(second))
    return bits(first) == bits(second)


def bits(arrays: Any) -> dict[Any, tuple[Any, ...]]:
    return {
        name: (array.dtype, array.shape, np.ascontiguousarray(array).tobytes())
        for name, array in arrays.items()
    }
