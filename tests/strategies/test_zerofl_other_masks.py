"""Clients that mask different layers train on together, also once masks are frozen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import FitIns, FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg
from torch import nn

from tests.strategies.federation import OK, Node, managed, play, zerofl
from zerofl_flwr import ZeroFLClient, sparsify
from zerofl_flwr.model_arrays import array_names, get_arrays

LAYERS = ["0", "1", "2", "3"]


def model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(6, 6) for _ in LAYERS))


def node(partition_id: int, masked: list[str]) -> Node:
    """Make a node of a ZeroFLClient that masks these layers; none of them trains dense."""
    generator = torch.Generator().manual_seed(partition_id)
    batch = (torch.randn(8, 6, generator=generator), torch.arange(8) % 6)
    net = sparsify(model(), 0.5, masked=masked) if masked else model()
    client = ZeroFLClient(net, [batch], partition_id=partition_id)

    def train(ins: FitIns) -> FitRes:
        arrays = parameters_to_ndarrays(ins.parameters)
        reply, examples, metrics = client.fit(arrays, dict(ins.config))
        return FitRes(OK, ndarrays_to_parameters(reply), examples, metrics)

    return Node(partition_id, train)


@pytest.mark.parametrize("rule", ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"])
@pytest.mark.parametrize("other", [["1"], ["1", "2", "3"], ["2", "3"], []], ids=str)
def test_all_replies_stay_good(
    rule: str, other: list[str], flower_log: pytest.LogCaptureFixture
) -> None:
    failed: list[Any] = []
    strategy = zerofl(
        FedAvg(),
        sparsity=0.5,
        rule=rule,
        freeze_mask_after_round=1,
        on_round=lambda report: failed.extend(c.failure for c in report.clients if c.failure),
    )
    manager = managed([node(0, ["1", "2"]), node(1, other)])
    parameters = ndarrays_to_parameters(get_arrays(model()))
    names = array_names(model())
    outside: dict[str, Any] = {}
    for server_round in (1, 2, 3):
        played = play(strategy, manager, parameters, server_round)
        before, parameters = parameters, played.parameters
        assert played.metrics["replies"] == 2
        assert not any(
            np.array_equal(new, old)
            for new, old in zip(played.arrays, parameters_to_ndarrays(before), strict=True)
        )
        if server_round > 1:
            kept = {names[p]: pattern for p, pattern in strategy.model.patterns.items()}
            assert list(kept) == ["1.weight", "2.weight"]
            for name, pattern in kept.items():
                mask = np.ones(36, bool)
                mask[pattern] = False
                outside.setdefault(name, mask)
                assert np.array_equal(outside[name], mask)
                assert not played.arrays[names.index(name)].reshape(-1)[mask].any()
    assert failed == []
    assert ("client 1 masks" in flower_log.text) == bool(other)
