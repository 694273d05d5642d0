"""The strategy as Flower's server sees it: its first model, what goes out, and good rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from flwr.common import (
    EvaluateIns,
    FitIns,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg, FedMedian, FedProx, Krum

from strategies import RoundReport, ZeroFL
from tests.strategies.federation import (
    Honest,
    honest_nodes,
    managed,
    partition_of,
    plan_of,
    play,
    received,
    same_bits,
    toy,
    zerofl,
)
from tests.strategies.standard import EXAMPLES, MODEL, RULES, honest_manager, play_rounds
from zerofl_flwr import ZeroFLSettings
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.topk import count_unmasked, topk_indices

# Building it


def test_its_settings_are_given_once() -> None:
    assert zerofl(sparsity=0.7).settings.sparsity == 0.7
    assert ZeroFL(settings=ZeroFLSettings(sparsity=0.7)).settings.sparsity == 0.7
    assert isinstance(ZeroFL().strategy, FedAvg)
    with pytest.raises(SettingsError, match=r"give settings or \['rule'\], not both"):
        ZeroFL(settings=ZeroFLSettings(), rule="top-k-diff")
    with pytest.raises(
        SettingsError, match="unknown ZeroFL setting 'mask_ration'; did you mean 'mask_ratio'"
    ):
        ZeroFL(mask_ration=0.1)
    with pytest.raises(SettingsError, match="sparsity"):
        ZeroFL(sparsity=1.5)


def test_it_shows_what_it_wraps() -> None:
    assert repr(ZeroFL(FedMedian(), per_client=True, sparsity=0.7, mask_ratio=0.1)) == (
        "ZeroFL(FedMedian, sparsity=0.7, mask_ratio=0.1, rule='top-k-weights')"
    )


@pytest.mark.parametrize("strategy", [Krum(), FedMedian()])
def test_strategies_that_need_single_replies_are_named_at_once(strategy: FedAvg) -> None:
    with pytest.raises(SettingsError, match=f"{type(strategy).__name__} needs .*per_client=True"):
        ZeroFL(strategy)


# What goes out


def test_instructions_carry_the_rounds_plan() -> None:
    strategy = zerofl(
        FedProx(proximal_mu=0.5, on_fit_config_fn=lambda number: {"rate": 0.1 * number}),
        rule="top-k-diff",
        sparsity_schedule="linear",
        sparsity_start=0.5,
        sparsity_rounds=4,
    )
    manager = honest_manager()
    for server_round in (1, 2):
        pairs = strategy.configure_fit(server_round, MODEL.parameters, manager)
        assert [partition_of(client) for client, _ in pairs] == [0, 1, 2, 3]
        for _, ins in pairs:
            assert plan_of(ins) == strategy.settings.plan(server_round)
            assert ins.config["proximal_mu"] == 0.5
            assert ins.config["rate"] == pytest.approx(0.1 * server_round)
    assert strategy.settings.plan(1).sparsity == 0.6


def test_clients_evaluate_the_model_that_they_train() -> None:
    nodes = honest_nodes(MODEL, EXAMPLES)
    strategy = zerofl(FedAvg(on_evaluate_config_fn=lambda _: {"batches": 3}))
    manager = managed(nodes)
    played = play(strategy, manager, MODEL.parameters, 1)
    pairs = strategy.configure_evaluate(1, played.parameters, manager)
    assert [partition_of(client) for client, _ in pairs] == [0, 1, 2, 3]
    for _, ins in pairs:
        assert isinstance(ins, EvaluateIns)
        assert plan_of(ins) == strategy.settings.plan(1)
        assert ins.config["batches"] == 3
        assert same_bits(received(ins.parameters)[0], played.arrays)
    assert (
        zerofl(FedAvg(fraction_evaluate=0.0)).configure_evaluate(1, MODEL.parameters, manager) == []
    )


def test_a_strategys_own_model_for_a_client_goes_out_with_the_plan() -> None:
    class Personal(FedAvg):
        def configure_fit(
            self, server_round: int, parameters: Parameters, client_manager: ClientManager
        ) -> list[tuple[ClientProxy, FitIns]]:
            pairs = super().configure_fit(server_round, parameters, client_manager)
            return [(pairs[0][0], FitIns(own, {})), *pairs[1:]]

    own = ndarrays_to_parameters([array + array.dtype.type(1) for array in MODEL.values])
    strategy = zerofl(Personal())
    pairs = strategy.configure_fit(1, MODEL.parameters, honest_manager())
    assert pairs[0][1].parameters == own
    assert plan_of(pairs[0][1]) == strategy.settings.plan(1)
    assert pairs[1][1].parameters == MODEL.parameters


# Good rounds


def test_a_round_is_reported() -> None:
    reports: list[RoundReport] = []
    nodes = honest_nodes(MODEL, EXAMPLES)
    for partition, node in enumerate(nodes):
        metrics: dict[str, Scalar] = {"train_loss": 1.0 + partition, "train_seconds": 2.0}
        node.train = Honest(MODEL, partition, EXAMPLES[partition], metrics)
    strategy = zerofl(FedAvg(), on_round=reports.append)
    played = play(strategy, managed(nodes), MODEL.parameters, 1)
    (report,) = reports
    assert report.plan == strategy.settings.plan(1)
    assert [client.partition_id for client in report.clients] == [0, 1, 2, 3]
    assert [client.num_examples for client in report.clients] == EXAMPLES
    assert all(client.downlink_bytes and client.uplink_bytes for client in report.clients)
    assert played.metrics["train_loss"] == 3.0
    assert played.metrics["train_seconds"] == 8.0
    assert (played.metrics["replies"], played.metrics["failures"]) == (4, 0)
    assert [layer.layer for layer in report.layers] == ["conv.weight", "fc.weight"]
    for layer in report.layers:
        array = played.arrays[MODEL.names.index(layer.layer)]
        assert layer.nonzero_ratio == np.count_nonzero(array) / array.size
        kept = topk_indices(array, count_unmasked(array.size, 0.9))
        assert np.flatnonzero(report.masks[layer.layer]).tolist() == kept.tolist()
    play(strategy, managed(nodes), played.parameters, 2)
    assert all(0 < layer.mask_overlap <= 1 for layer in reports[1].layers)


def test_metrics_of_the_wrapped_strategy_are_passed_on() -> None:
    strategy = zerofl(
        FedAvg(fit_metrics_aggregation_fn=lambda m: {"clients": len(m), "replies": -1})
    )
    played = play(strategy, honest_manager(), MODEL.parameters, 1)
    assert played.metrics["clients"] == 4
    assert played.metrics["replies"] == -1  # the user's own name wins
    assert played.metrics["uplink_bytes"] != 0


def test_replies_in_any_order_make_the_same_model() -> None:
    def aggregated(order: Sequence[int]) -> Parameters | None:
        strategy = zerofl(FedAvg(), aggregation="senders")
        pairs = strategy.configure_fit(1, MODEL.parameters, honest_manager())
        results = [(client, client.fit(ins, None, 1)) for client, ins in pairs]
        return strategy.aggregate_fit(1, [results[index] for index in order], [])[0]

    assert aggregated([0, 1, 2, 3]) == aggregated([3, 1, 0, 2]) == aggregated([2, 3, 1, 0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_the_sparse_downlink_changes_nothing_but_bytes(rule: str, dtype: str) -> None:
    model = toy(dtype, batch_norm=True, width=30)
    ends, downlinks = [], []
    for sparse_downlink in (True, False):
        strategy = zerofl(FedAvg(), rule=rule, sparse_downlink=sparse_downlink)
        last = play_rounds(strategy, honest_manager(model), model.parameters, (1, 2, 3))[-1]
        ends.append(last.parameters.tensors)
        downlinks.append(float(last.metrics["downlink_bytes"]))
    assert ends[0] == ends[1]
    if rule == "top-k-weights":  # the others keep the server's weights, which are dense
        assert downlinks[0] < 0.9 * downlinks[1]
