"""What exchanges are foretold to cost, against what is measured of them in a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.common import Scalar
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adasplit_flwr import AdaSplitSettings, SplitModel
from adasplit_flwr.activation_payload import ActivationBatch, encode_activations
from adasplit_flwr.batches import exchange_sizes
from adasplit_flwr.gradient_payload import encode_gradients
from strategies.blank_messages import blank_reply
from strategies.exchange_costs import Costs, ExchangeCosts, ForetoldExchange
from strategies.metering import message_bytes
from strategies.traffic import Breakdown
from tests.strategies.adasplit_federation import (
    CLASSES,
    FEATURES,
    adasplit,
    run_rounds,
    samples_of,
    split_nodes,
    tiny_split,
)

EPOCH = (4, 4, 3)
MODES: dict[str, dict[str, Any]] = {
    "personal": {"kappa": 0.4},
    "float16": {"precision": "float16", "iterations_per_round": 2},
    "gradients": {"server_gradient": "selected", "iterations_per_round": 2},
    "frozen": {"local_loss": False, "eta": 1.0},
    "averaged": {"client_weights": "averaged", "share_every": 2, "server_gradient": "selected"},
    "relayed": {"client_weights": "relayed", "iterations_per_round": 1},
    "SL-basic": {
        "client_weights": "relayed",
        "server_gradient": "selected",
        "local_loss": False,
        "mask": "none",
        "selection": "all",
    },
}


def costs_of(split: SplitModel | None = None, **options: Any) -> ExchangeCosts:
    return ExchangeCosts(
        split or tiny_split(),
        AdaSplitSettings(**{"kappa": 0.0, **options}),
        sample_shape=(FEATURES,),
        num_classes=CLASSES,
        run="run",
    )


def image_costs(precision: str) -> ExchangeCosts:
    split = SplitModel(
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1)),
        nn.Sequential(nn.Flatten(), nn.Linear(288, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(288, 2)),
    )
    return ExchangeCosts(
        split,
        AdaSplitSettings(precision=precision, server_gradient="selected"),
        sample_shape=(1, 6, 6),
        num_classes=2,
        run="run",
    )


IMAGE_COSTS = {precision: image_costs(precision) for precision in ("float32", "float16")}


def uncounted(breakdown: Breakdown) -> Breakdown:
    return replace(breakdown, counted=0)


@pytest.mark.parametrize("mode", MODES)
def test_bytes_and_work_are_those_of_a_run(mode: str) -> None:
    options = MODES[mode]
    nodes = split_nodes(3)
    for node in nodes:
        node.data = samples_of(node.partition, 11)
    strategy = adasplit(rounds=12, seed=5, **options)
    costs = costs_of(**options)
    iterations = options.get("iterations_per_round")
    taken: dict[int, int] = {}
    uploaded: dict[int, tuple[int, ...]] = {}
    compared = 0
    for played in run_rounds(strategy, nodes, range(1, 13)):
        for client in played.report.clients:
            partition = client.partition_id
            assert partition is not None
            plan = played.plan(partition)
            sizes = exchange_sizes(EPOCH, taken.get(partition, 0), iterations)
            foretold = ForetoldExchange(
                plan.server_round,
                () if plan.finish else sizes,
                upload=plan.upload,
                shares=plan.upload_weights,
                begins=plan.weight_arrays > 0,
                returned=uploaded.get(partition, ()) if plan.gradient_arrays else (),
                state_round=plan.state_round,
            )
            assert uncounted(costs.downlink(foretold)) == uncounted(client.down)
            assert uncounted(costs.uplink(foretold)) == uncounted(client.up)
            assert costs.uplink(foretold).counted >= client.up.counted
            assert costs.of(foretold).bytes == client.downlink_bytes + client.uplink_bytes
            assert costs.of(foretold).server_ops == client.server_samples * server_step(options)
            assert sum(foretold.returned) == client.gradient_samples
            taken[partition] = taken.get(partition, 0) + len(foretold.sizes)
            uploaded[partition] = sizes if plan.upload else ()
            compared += 1
    assert compared >= 12


def server_step(options: dict[str, Any]) -> int:
    """Multiply-adds of 5-4-3 with the backward pass, counted by hand."""
    first, last = 5 * 4, 4 * 3
    returns = options.get("server_gradient") == "selected"
    return 3 * last + (3 if returns else 2) * first


def test_work_counted_by_hand() -> None:
    # Client 6-5, head 5-3, server 5-4-3.
    costs = costs_of(server_gradient="selected")
    plain = ForetoldExchange(1, (4, 2), begins=True)
    assert costs.of(plain).client_ops == 6 * (2 * 30 + 3 * 15)
    assert costs.of(plain).server_ops == 0
    both = ForetoldExchange(2, (4, 2), upload=True, returned=(4, 2), state_round=1)
    assert costs.of(both).client_ops == 6 * (2 * 30 + 3 * 15) + 6 * 2 * 30
    assert costs.of(both).server_ops == 6 * (3 * 12 + 3 * 20)
    assert costs.of(both).ops == costs.of(both).client_ops + costs.of(both).server_ops
    frozen = costs_of(local_loss=False)
    assert frozen.of(both).client_ops == 6 * 30 + 6 * 2 * 30


def test_data_of_the_messages_counted_by_hand() -> None:
    costs = costs_of(server_gradient="selected", precision="float16")
    exchange = ForetoldExchange(2, (4, 2), upload=True, shares=True, returned=(3,), state_round=1)
    up, down = costs.uplink(exchange), costs.downlink(exchange)
    weights = 4 * (30 + 5 + 15 + 3)
    assert (up.activations, up.labels, up.weights) == (6 * 5 * 2, 6, weights)
    assert (down.gradients, down.weights) == (3 * 5 * 4, 0)
    assert (up.gradients, up.indices, down.indices) == (0, 0, 0)
    assert up.counted == 4 * 6 * 5 + weights
    assert down.counted == 3 * 5 * 4
    assert costs.downlink(replace(exchange, returned=(), begins=True)).weights == weights


def test_costs_add_up() -> None:
    assert Costs(1, 20, 300) + Costs(4, 50, 600) - Costs(2, 30, 400) == Costs(3, 40, 500)
    assert sum([Costs(1), Costs(2)], Costs()) == Costs(3)


@given(
    zeros=st.floats(0, 1),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    seed=st.integers(0, 100),
    precision=st.sampled_from(["float32", "float16"]),
)
def test_sparse_uploads_and_gradients_are_never_larger(
    zeros: float, sizes: list[int], seed: int, precision: str
) -> None:
    rng = np.random.default_rng(seed)
    batches = [
        ActivationBatch(
            number,
            np.where(rng.random((size, 8, 6, 6)) < zeros, 0, 1.5).astype(np.float32),
            np.zeros(size, np.int64),
        )
        for number, size in enumerate(sizes)
    ]
    costs = IMAGE_COSTS[precision]
    exchange = ForetoldExchange(7, tuple(sizes), upload=True, returned=tuple(sizes))
    arrays = encode_activations(batches, server_round=7, num_classes=2, precision=precision)
    metrics: dict[str, Scalar] = {
        **dict.fromkeys(("train_loss", "train_seconds", "client_memory_mb"), 1.0),
        "iterations": len(sizes),
        "activation_arrays": len(arrays),
        "round": 7,
    }
    came = message_bytes(blank_reply(arrays, sum(sizes), metrics))
    up = costs.uplink(exchange)
    assert came <= sum(up.by_category().values())
    gradients = encode_gradients([(b.batch_id, b.activations) for b in batches], server_round=7)
    blank = costs.downlink(exchange)
    # Behind the gradients come an id and a size of each batch, four bytes each.
    assert sum(array.nbytes for array in gradients[1:]) <= blank.gradients + 8 * len(sizes)
