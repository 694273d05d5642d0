"""Phases of AdaSplit: who trains, who uploads, and what goes down to whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import GetPropertiesRes, parameters_to_ndarrays

from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.weights_payload import decode_weights, named_arrays, named_specs
from strategies.metering import message_bytes
from tests.strategies.adasplit_federation import (
    NOTHING,
    SplitNode,
    adasplit,
    exchange,
    run_rounds,
    split_nodes,
    tiny_split,
)
from tests.strategies.federation import managed, same_bits
from zerofl_flwr.errors import RoundFailedError, SettingsError


def test_the_local_phase_sends_the_start_once_and_nothing_else() -> None:
    strategy = adasplit(rounds=5, kappa=0.6)
    played = run_rounds(strategy, split_nodes(3), range(1, 6))
    assert [each.report.phase for each in played] == ["local"] * 3 + ["global"] * 2
    first, second, third = played[:3]
    split = tiny_split()
    parts = {"client": split.client, "head": split.head}
    for client, ins in first.instructions.items():
        start = decode_weights(ins.parameters.tensors, named_specs(parts), server_round=1)
        assert same_bits(list(start.values()), list(named_arrays(parts).values()))
        assert first.plan(client).state_round == 0
    for each in (second, third):
        assert all(not ins.parameters.tensors for ins in each.instructions.values())
    for each in (first, second, third):
        assert all(not result.parameters.tensors for result in each.results.values())
        assert each.uploaders == []
        assert np.isnan(each.report.server_loss)
    assert [third.plan(client).state_round for client in range(3)] == [2, 2, 2]
    assert [played[3].plan(client).state_round for client in range(3)] == [3, 3, 3]


def test_in_the_global_phase_the_picked_upload_and_nothing_goes_back() -> None:
    strategy = adasplit(eta=0.6)
    played = run_rounds(strategy, split_nodes(3), (1, 2))
    for each in played:
        assert len(each.uploaders) == 2  # .6 of 3 is 1.8
        for client, result in each.results.items():
            assert bool(result.parameters.tensors) == (client in each.uploaders)
    assert all(not ins.parameters.tensors for ins in played[1].instructions.values())
    assert not same_bits(played[0].arrays, played[1].arrays)


def test_everybody_is_picked_once_before_anybody_twice() -> None:
    strategy = adasplit(eta=0.25, iterations_per_round=1)
    played = run_rounds(strategy, split_nodes(4), (1, 2, 3, 4))
    assert sorted(client for each in played for client in each.uploaders) == [0, 1, 2, 3]


def test_picks_are_those_of_the_orchestrator() -> None:
    strategy, alone = adasplit(eta=0.5, seed=4), Orchestrator(0.75, seed=4)
    manager = managed(split_nodes(4, seed=4))
    for server_round in (1, 2, 3):
        picks = alone.pick(range(4), 2)
        terms = alone.terms(range(4))
        played = exchange(strategy, manager, server_round)
        assert played.uploaders == picks
        shown = [(c.exploitation, c.exploration) for c in played.report.clients]
        assert shown == list(zip(terms.exploitation, terms.exploration, strict=True))
        assert [c.picked for c in played.report.clients] == [i in picks for i in range(4)]
        # Their mean losses over the whole exchange are what the picks hang on next.
        alone.update({c.partition_id: c.server_loss for c in played.report.clients if c.picked})  # type: ignore[misc]
        assert strategy.orchestrator.exchanges == server_round


@pytest.mark.parametrize(("selection", "count"), [("random", 2), ("all", 4)])
def test_other_selections(selection: str, count: int) -> None:
    def picks(seed: int) -> list[list[int]]:
        share: dict[str, Any] = {} if selection == "all" else {"eta": 0.5}
        strategy = adasplit(selection=selection, seed=seed, **share)
        return [each.uploaders for each in run_rounds(strategy, split_nodes(4), range(1, 6))]

    first = picks(1)
    assert [len(round_picks) for round_picks in first] == [count] * 5
    assert picks(1) == first
    assert (picks(2) != first) == (selection == "random")


def test_a_share_of_the_clients_trains_and_eta_picks_among_them() -> None:
    strategy = adasplit(fraction_fit=0.5, eta=0.5, min_available_clients=8)
    played = run_rounds(strategy, split_nodes(8), (1, 2, 3))
    trained: set[int] = set()
    for each in played:
        assert (len(each.instructions), len(each.uploaders)) == (4, 2)
        for client in each.instructions:
            fresh = client not in trained
            assert bool(each.instructions[client].parameters.tensors) == fresh
        trained |= set(each.instructions)
    assert len({tuple(each.instructions) for each in played}) > 1


def test_at_least_so_many_train() -> None:
    strategy = adasplit(fraction_fit=0.1, min_fit_clients=3)
    (played,) = run_rounds(strategy, split_nodes(4), (1,))
    assert len(played.instructions) == 3


def test_a_plan_says_what_the_settings_say() -> None:
    strategy = adasplit(
        rounds=4,
        kappa=0.5,
        iterations_per_round=2,
        adam_schedule="cosine",
        adam_learning_rate=0.25,
        adam_weight_decay=0,
        temperature=1,
        activation_penalty=0.5,
        precision="float16",
        run="a-run",
    )
    played = run_rounds(strategy, split_nodes(2), range(1, 5))
    plan = played[3].plan(1)
    assert (plan.run, plan.server_round, plan.iterations) == ("a-run", 4, 2)
    assert (plan.temperature, plan.activation_penalty, plan.precision) == (1.0, 0.5, "float16")
    assert [each.plan(0).learning_rate for each in played] == pytest.approx(
        [0.25, 0.25, 0.25, 0.25 * (1 + np.cos(np.pi / 4.4)) / 2]
    )
    assert strategy.server.learning_rate == plan.learning_rate
    assert plan.weight_decay == 0.0


def test_flower_holds_the_whole_network() -> None:
    split = tiny_split()
    strategy = adasplit(split, kappa=0.5)
    parameters = strategy.initialize_parameters(managed([]))
    own = [tensor.numpy() for tensor in split.state_dict().values()]
    assert same_bits(parameters_to_ndarrays(parameters), own)
    local, *_, last = run_rounds(strategy, split_nodes(2), range(1, 5))
    assert same_bits(local.arrays, own)
    names = list(split.state_dict())
    server = dict(zip(names, last.arrays, strict=True))
    state = strategy.server.state_arrays()
    assert all(
        np.array_equal(server[f"server.{key}"], state[f"weights/{key}"])
        for key in split.server.state_dict()
    )
    assert same_bits(last.arrays[:4], own[:4])
    assert not same_bits(last.arrays[6:], own[6:])
    assert same_bits([tensor.numpy() for tensor in split.state_dict().values()], own)


def test_a_round_reports_what_was_serialized() -> None:
    strategy = adasplit(kappa=0.2, rounds=5, eta=0.5)
    for each in run_rounds(strategy, split_nodes(3), (1, 2)):
        for client in each.report.clients:
            assert client.partition_id is not None
            assert client.downlink_bytes == message_bytes(each.instructions[client.partition_id])
            assert client.uplink_bytes == message_bytes(each.results[client.partition_id])
        assert each.metrics["uplink_bytes"] == sum(c.uplink_bytes for c in each.report.clients)
        assert each.metrics["picked"] == len(each.uploaders)
        assert each.metrics["replies"] == 3


def test_the_settings_that_matter_most_are_named() -> None:
    assert repr(adasplit(eta=0.3)) == (
        "AdaSplit(rounds=6, kappa=0.0, eta=0.3, selection='ucb', mask='soft')"
    )


def test_rounds_beyond_those_it_was_built_for_are_refused() -> None:
    strategy = adasplit(rounds=2)
    with pytest.raises(SettingsError, match=r"round 3 was asked for; .* for rounds=2"):
        strategy.configure_fit(3, NOTHING, managed(split_nodes(1)))


def test_too_few_clients_end_the_run() -> None:
    class Silent(SplitNode):
        def get_properties(self, *_: Any) -> GetPropertiesRes:
            raise ConnectionError("gone")

    strategy = adasplit(min_fit_clients=2)
    with pytest.raises(RoundFailedError, match=r"round 1: not enough clients .* from 1 available"):
        strategy.configure_fit(1, NOTHING, managed([SplitNode(0), Silent(1)]))


def test_the_server_uses_the_threads_that_it_was_given() -> None:
    before = torch.get_num_threads()
    try:
        strategy = adasplit(threads=2)
        torch.set_num_threads(1)  # as a client of this process does
        strategy.aggregate_evaluate(1, [], [])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
