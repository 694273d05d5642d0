"""ZeroFL's client on a whole model, and what it leaves for the next client of the process."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.zerofl_flwr.client_messages import PLAN, Arrays, config_of, decoded, dense, same
from zerofl_flwr.client import ZeroFLClient
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.model_arrays import array_names, get_arrays
from zerofl_flwr.payload import Entry, NotSent, SparseArray, encode
from zerofl_flwr.sparsify import sparsify
from zerofl_flwr.training import TrainingSettings


def full_model() -> nn.Module:
    """Give a model with masked layers, batch norm and dropout, the same each time."""
    torch.manual_seed(11)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(8 * 16, 32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    return sparsify(model, 0.5)


MASKED = ["3.weight", "7.weight"]


def data_of(partition_id: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(partition_id)
    inputs = torch.randn(24, 1, 4, 4, generator=generator)
    labels = torch.randint(3, (24,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)


def client_of(partition_id: int, model: nn.Module, **options: Any) -> ZeroFLClient:
    return ZeroFLClient(
        model,
        data_of(partition_id),
        data_of(100 + partition_id),
        training=TrainingSettings(learning_rate=0.05, momentum=0.9),
        partition_id=partition_id,
        **options,
    )


def global_arrays() -> Arrays:
    """Give a global model whose masked layers are mostly zero."""
    model = full_model()
    arrays = get_arrays(model)
    for position, name in enumerate(array_names(model)):
        if name in MASKED:
            small = np.abs(arrays[position]) < np.quantile(np.abs(arrays[position]), 0.8)
            arrays[position][small] = 0
    return arrays


def sparse_downlink(arrays: Arrays) -> Arrays:
    entries = []
    for name, array in zip(array_names(full_model()), arrays, strict=True):
        data = SparseArray.from_dense(array) if name in MASKED else array
        entries.append(Entry(name, data))
    return encode(entries, {"round": 3})


def frozen_downlink(arrays: Arrays) -> Arrays:
    entries = []
    for name, array in zip(array_names(full_model()), arrays, strict=True):
        pattern = np.flatnonzero(array)
        data = SparseArray.from_indices(pattern, array.reshape(-1)[pattern], array.shape)
        entries.append(Entry(name, data if name in MASKED else array))
    return encode(entries, {"round": 3}, force_csr=True)


def test_every_kind_of_tensor_travels_as_it_should() -> None:
    client = client_of(0, full_model())
    before = global_arrays()
    reply, samples, _ = client.fit(before, config_of())
    after = dict(zip(array_names(client.model), get_arrays(client.model), strict=True))
    assert samples == 24
    for entry in decoded(reply, client).entries:
        if entry.name == "1.num_batches_tracked":
            assert isinstance(entry.data, NotSent)
        elif entry.name in MASKED:
            sent = dense(entry)
            kept = sent != 0
            assert np.count_nonzero(kept) == np.ceil(0.75 * sent.size)
            assert np.array_equal(sent[kept], after[entry.name][kept])
            assert np.abs(after[entry.name][~kept]).max() <= np.abs(sent[kept]).min()
        else:
            assert np.array_equal(dense(entry), after[entry.name]), entry.name


def test_a_sparse_downlink_gives_what_the_dense_one_gives() -> None:
    arrays = global_arrays()
    from_dense, from_sparse = client_of(0, full_model()), client_of(0, full_model())
    assert same(
        from_dense.fit(arrays, config_of())[0],
        from_sparse.fit(sparse_downlink(arrays), config_of())[0],
    )
    assert from_dense.evaluate(arrays, config_of()) == from_sparse.evaluate(
        sparse_downlink(arrays), config_of()
    )


def test_two_clients_that_share_a_model_leave_nothing_to_each_other() -> None:
    arrays = global_arrays()
    frozen = dataclasses.replace(PLAN, frozen=True)
    messages = [
        (0, arrays, config_of()),
        (1, arrays, config_of(others={"learning-rate": 0.5, "proximal_mu": 0.1})),
        (0, frozen_downlink(arrays), config_of(frozen)),
        (1, arrays, config_of(dataclasses.replace(PLAN, sparsity=0.9, topk_period=1))),
    ]
    alone = [
        client_of(who, full_model()).fit(parameters, config)[0]
        for who, parameters, config in messages
    ]
    shared = full_model()
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        for index in order:
            who, parameters, config = messages[index]
            reply = client_of(who, shared).fit(parameters, config)[0]
            assert same(reply, alone[index]), (order, index)
            client_of(1 - who, shared).evaluate(arrays, config_of())


def test_an_evaluation_is_not_changed_by_what_the_model_did_before() -> None:
    arrays, shared = global_arrays(), full_model()
    expected = client_of(0, full_model()).evaluate(arrays, config_of())
    frozen = dataclasses.replace(PLAN, frozen=True, sparsity=0.9)
    client_of(1, shared).fit(frozen_downlink(arrays), config_of(frozen))
    assert client_of(0, shared).evaluate(arrays, config_of()) == expected


def fitted(round_: int = 3, partition_id: int = 0, seed: int = 0, global_seed: int = 0) -> Arrays:
    model = full_model()
    torch.manual_seed(global_seed)
    client = ZeroFLClient(model, data_of(0), partition_id=partition_id, seed=seed)
    plan = dataclasses.replace(PLAN, server_round=round_)
    client.fit(global_arrays(), config_of(plan))
    return get_arrays(model)


def test_training_depends_on_seed_round_and_partition_and_on_nothing_else() -> None:
    assert same(fitted(), fitted(global_seed=99))
    for other in ({"round_": 4}, {"partition_id": 1}, {"seed": 1}):
        assert not same(fitted(), fitted(**other)), other


def test_the_rounds_topk_period_counts() -> None:
    replies = []
    for period in (1, 2, 10):
        plan = dataclasses.replace(PLAN, topk_period=period)
        replies.append(client_of(0, full_model()).fit(global_arrays(), config_of(plan))[0])
    # Six batches: with ten, and with two, later batches reuse a threshold.
    assert not same(replies[0], replies[1])
    assert not same(replies[0], replies[2])
    assert not same(replies[1], replies[2])


def test_evaluation_uses_the_sparse_weights() -> None:
    client = client_of(0, full_model())
    arrays = get_arrays(full_model())
    loss, samples, metrics = client.evaluate(arrays, config_of())
    sparse = full_model()
    state = sparse.state_dict()
    for name in MASKED:
        weight = state[name]
        cut = weight.abs().flatten().sort().values[weight.numel() // 2]
        weight[weight.abs() < cut] = 0
    inputs, labels = data_of(100).dataset.tensors  # type: ignore[attr-defined]
    # Dense layers on the weights that were cut by hand.
    plain = sparsify(sparse, 0.0, masked=lambda name, module: False).eval()
    outputs = plain(inputs).detach()
    assert samples == 24
    assert loss == pytest.approx(float(F.cross_entropy(outputs, labels)), rel=1e-5)
    assert metrics == {"accuracy": float((outputs.argmax(1) == labels).float().mean())}


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_global_model_that_does_not_fit_is_refused_by_layer(method: str) -> None:
    client = client_of(0, full_model())
    run = getattr(client, method)
    arrays = global_arrays()
    with pytest.raises(PayloadError, match="server: expected 12 arrays for this model, got 11"):
        run(arrays[:-1], config_of())
    wrong = [*arrays[:-1], np.zeros(4, np.float32)]
    with pytest.raises(PayloadError, match=r"server, layer 9\.bias, field shape"):
        run(wrong, config_of())
    with pytest.raises(PayloadError, match=r"server, layer 9\.bias, .*shape"):
        run(sparse_downlink(wrong), config_of())
