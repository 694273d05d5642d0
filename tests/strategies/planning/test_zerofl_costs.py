"""What whole ZeroFL runs are foretold to cost, against real clients behind a real strategy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from flwr.common import FitIns, FitRes, ndarrays_to_parameters
from flwr.server.strategy import FedAvg, FedProx
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from strategies import RoundReport
from strategies.planning import RunCosts, ZeroFLCosts
from strategies.traffic import CATEGORIES
from tests.strategies.federation import Node, managed, play, zerofl
from tests.strategies.planning.zerofl_network import (
    EQUAL,
    FIRST,
    LAST,
    SECOND,
    SHAPE,
    THIRD,
    network,
)
from zerofl_flwr import TrainingSettings, ZeroFLClient, ZeroFLSettings, sparsify
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import array_names, get_arrays

UNEQUAL, ROUNDS = (5, 12, 300), 4
MODES: dict[str, dict[str, Any]] = {
    "constant": {"sparsity": 0.9, "mask_ratio": 0.05},
    "uploads all": {"sparsity": 0.9, "mask_ratio": 0.9},
    "barely sparse": {"sparsity": 0.3, "mask_ratio": 0.0},
    "differences": {"sparsity": 0.8, "mask_ratio": 0.1, "rule": "top-k-diff"},
    "a ramp": {
        "sparsity": 0.9,
        "sparsity_schedule": "cubic",
        "sparsity_start": 0.2,
        "sparsity_rounds": 3,
    },
    "frozen": {"sparsity": 0.9, "mask_ratio": 0.1, "freeze_mask_after_round": 2},
    "dense": {"sparsity": 0.0},
}


def train(partition_id: int, samples: int, sparse: bool, ins: FitIns) -> FitRes:
    generator = torch.Generator().manual_seed(partition_id)
    inputs = torch.randn(samples, *SHAPE, generator=generator)
    data = TensorDataset(inputs, torch.randint(3, (samples,), generator=generator))
    model = sparsify(network(), 0.5) if sparse else network()
    training = TrainingSettings(learning_rate=0.01)
    client = ZeroFLClient(
        model, DataLoader(data, 100), training=training, partition_id=partition_id
    )
    return client.to_client().fit(ins)


def measured(samples: Sequence[int], wrapped: Any = None, **options: Any) -> list[RoundReport]:
    sparse = options["sparsity"] > 0
    nodes = [Node(c, partial(train, c, own, sparse)) for c, own in enumerate(samples)]
    manager, parameters = managed(nodes), ndarrays_to_parameters(get_arrays(network()))
    given: dict[str, Any] = {"mask_ratio": None, "sparse_downlink": False, **options}
    strategy = zerofl(wrapped or FedAvg(), array_names=array_names(network()), **given)
    reports: list[RoundReport] = []
    strategy.on_round = reports.append
    for server_round in range(1, ROUNDS + 1):
        parameters = play(strategy, manager, parameters, server_round).parameters
    assert not any(client.failure for report in reports for client in report.clients)
    return reports


def foretold(samples: Sequence[int], config: Any = None, **options: Any) -> RunCosts:
    costs = ZeroFLCosts(network(), samples, sample_shape=SHAPE, config=config)
    return costs.of(ZeroFLSettings(**{"sparse_downlink": False, **options}), ROUNDS)


def by_category(reports: Sequence[RoundReport], way: str) -> dict[str, int]:
    return {
        name: sum(getattr(getattr(c, way), name) for r in reports for c in r.clients)
        for name in CATEGORIES
    }


@pytest.mark.parametrize("mode", MODES)
def test_runs_cost_what_was_foretold(mode: str) -> None:
    reports, costs = measured(UNEQUAL, **MODES[mode]), foretold(UNEQUAL, **MODES[mode])
    assert costs.is_exact
    assert costs.total.down.by_category() == by_category(reports, "down")
    assert costs.total.up.by_category() == by_category(reports, "up")
    assert costs.total.trained == ROUNDS * sum(UNEQUAL)


def test_a_sparse_downlink_is_bounded() -> None:
    options = {**MODES["constant"], "sparse_downlink": True}
    reports, costs = measured(EQUAL, **options), foretold(EQUAL, **options)
    down = sum(by_category(reports, "down").values())
    assert by_category(reports, "down")["indices"] > 0
    assert down < costs.total.downlink_bytes
    assert costs.total.up.by_category() == by_category(reports, "up")


def test_what_the_wrapped_strategy_sends_counts() -> None:
    wrapped = FedProx(proximal_mu=0.5, on_fit_config_fn=lambda number: {"local-epochs": 1})
    reports = measured(EQUAL, wrapped, **MODES["constant"])
    costs = foretold(EQUAL, {"proximal_mu": 0.5, "local-epochs": 1}, **MODES["constant"])
    assert costs.total.down.by_category() == by_category(reports, "down")
    assert foretold(EQUAL, **MODES["constant"]).total.bytes < costs.total.bytes


def test_multiply_adds_are_those_of_what_is_not_zero() -> None:
    total = foretold(EQUAL, sparsity=0.75, activation_sparsity=0.5, mask_ratio=0.0).total
    samples = ROUNDS * sum(EQUAL)
    dense, masked = FIRST + LAST, SECOND + THIRD
    assert total.client_forward_ops == samples * (dense + masked // 4)
    step = FIRST + 2 * LAST + masked // 4 + masked // 2
    assert total.client_ops == samples * (dense + masked // 4 + step)
    assert (total.server_ops, total.ops) == (0, total.client_ops)


def test_weights_that_go_up_are_those_that_are_masked_and_kept() -> None:
    masked = 9 * 24 + 216 * 8
    assert foretold(EQUAL, sparsity=0.5, mask_ratio=0.25).weights_up == ROUNDS * masked * 3 // 4
    frozen = foretold(EQUAL, sparsity=0.5, mask_ratio=0.25, freeze_mask_after_round=1)
    assert frozen.weights_up == masked * 3 // 4 + (ROUNDS - 1) * masked // 2


def test_epochs_and_drawn_clients_count() -> None:
    def costs(**options: Any) -> RunCosts:
        made = ZeroFLCosts(network(), UNEQUAL, sample_shape=SHAPE, **options)
        return made.of(ZeroFLSettings(sparsity=0.9), ROUNDS)

    once, twice = costs(), costs(local_epochs=2)
    assert twice.total.client_ops == pytest.approx(2 * once.total.client_ops, rel=1e-9)
    two = costs(clients_per_round=2)
    assert not two.is_exact
    assert two.total.trained == ROUNDS * (12 + 300)
    assert two.clients[2].client_ops == once.clients[2].client_ops


def test_a_model_that_is_sparse_already_keeps_its_layers() -> None:
    sparse = sparsify(network(), 0.5, masked=["2"])
    before = copy.deepcopy(sparse.state_dict())
    costs = ZeroFLCosts(sparse, EQUAL, sample_shape=SHAPE)
    assert costs.of(ZeroFLSettings(sparsity=0.5, mask_ratio=0.0), 1).weights_up == 9 * 12
    named = ZeroFLCosts(network(), EQUAL, sample_shape=SHAPE, masked=["2"])
    assert named.of(ZeroFLSettings(sparsity=0.5, mask_ratio=0.0), 1).weights_up == 9 * 12
    assert all((before[key] == value).all() for key, value in sparse.state_dict().items())


@settings(max_examples=15, deadline=None)
@given(
    sparsity=st.integers(0, 19),
    less=st.integers(0, 19),
    rounds=st.integers(1, 30),
)
def test_more_rounds_and_larger_mask_ratios_never_cost_less(
    sparsity: int, less: int, rounds: int
) -> None:
    costs = ZeroFLCosts(network(), EQUAL, sample_shape=SHAPE)
    ratio = min(less, sparsity) / 20
    small, large = (
        costs.of(ZeroFLSettings(sparsity=sparsity / 20, mask_ratio=one), rounds)
        for one in (ratio, sparsity / 20)
    )
    assert small.total.bytes <= large.total.bytes + 600 * rounds  # headers of CSR
    assert small.weights_up <= large.weights_up
    longer = costs.of(ZeroFLSettings(sparsity=sparsity / 20, mask_ratio=ratio), rounds + 1)
    assert longer.total.bytes > small.total.bytes
    assert longer.total.client_ops > small.total.client_ops


def test_no_round_is_refused() -> None:
    costs = ZeroFLCosts(network(), EQUAL, sample_shape=SHAPE)
    with pytest.raises(SettingsError, match="rounds is 0"):
        costs.of(ZeroFLSettings(), 0)
