"""Zero positions stay where they are once they are frozen."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from flwr.common import (
    FitIns,
    FitRes,
    Parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAdam, FedAvg

from tests.strategies.federation import (
    Honest,
    Node,
    Toy,
    managed,
    plan_of,
    play,
    received,
    same_bits,
    zerofl,
)
from tests.strategies.standard import MODEL, RULES, honest_manager, play_rounds
from zerofl_flwr.errors import RoundFailedError
from zerofl_flwr.payload import Values, decode
from zerofl_flwr.topk import count_unmasked, topk_indices


@pytest.mark.parametrize("aggregation", ["all-clients", "senders"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
def test_zeros_stay_zero_once_frozen(name: str, rule: str, aggregation: str) -> None:
    start = MODEL.parameters
    wrapped = FedAvg() if name == "FedAvg" else FedAdam(initial_parameters=start, eta=0.1)
    strategy = zerofl(
        wrapped, sparsity=0.8, rule=rule, aggregation=aggregation, freeze_mask_after_round=1
    )
    broadcast, *frozen = play_rounds(strategy, honest_manager(), start, (1, 2, 3, 4))
    patterns = {
        position: topk_indices(array, count_unmasked(array.size, 0.8))
        for position, array in enumerate(broadcast.arrays)
        if position in (0, 5)
    }
    for before, played in pairwise([broadcast, *frozen]):
        for ins in played.instructions.values():
            sent, came = received(ins.parameters)
            assert list(came) == [0, 5]
            for position, pattern in patterns.items():
                assert came[position].tolist() == pattern.tolist()
                assert set(np.flatnonzero(sent[position])) <= set(pattern)
        for result in played.results.values():
            payload = decode(
                result.parameters.tensors,
                None,
                sender="test",
                pattern_sizes={position: len(pattern) for position, pattern in patterns.items()},
            )
            assert [isinstance(e.data, Values) for e in payload.entries].count(True) == 2
        for position, pattern in patterns.items():
            array = played.arrays[position]
            outside = np.ones(array.size, np.bool_)
            outside[pattern] = False
            assert not array.reshape(-1)[outside].any()
            assert np.count_nonzero(array) > 0.9 * len(pattern)
        assert not same_bits(played.arrays, before.arrays)


def test_frozen_weights_average_over_all_who_sent_them() -> None:
    model = Toy({"w": np.array([[4, -3], [2, 1]], np.float32)}, masked=("w",))

    class Fixed(Honest):
        def __call__(self, ins: FitIns) -> FitRes:
            before, patterns = received(ins.parameters)
            plan = plan_of(ins)
            after = [before[0] * (2 if self.partition_id else 0)]
            return self.reply(plan, before, after, patterns if plan.frozen else {})

    nodes = [Node(0, Fixed(model, 0, 1)), Node(1, Fixed(model, 1, 3))]
    strategy = zerofl(FedAvg(), sparsity=0.5, rule="top-k-diff", freeze_mask_after_round=1)
    strategy.model.learn([], [0])
    played = play(strategy, managed(nodes), model.parameters, 2)
    # Client 0 sends zeros at the pattern, which count as sent: 0 * 1/4 + 2w * 3/4.
    np.testing.assert_array_equal(played.arrays[0], [[6, -4.5], [0, 0]])


def test_the_wrapped_strategy_sees_the_model_that_the_clients_get() -> None:
    class Spy(FedAvg):
        def configure_fit(
            self, server_round: int, parameters: Parameters, client_manager: ClientManager
        ) -> list[tuple[ClientProxy, FitIns]]:
            seen.append(parameters_to_ndarrays(parameters))
            return super().configure_fit(server_round, parameters, client_manager)

    seen: list[list[np.ndarray]] = []
    strategy = zerofl(Spy(), rule="top-k-diff", freeze_mask_after_round=1)
    first, second = play_rounds(strategy, honest_manager(), MODEL.parameters, (1, 2))
    assert same_bits(seen[1], received(second.instructions[0].parameters)[0])
    assert not same_bits(seen[1], first.arrays)


def test_freezing_needs_a_client_that_masks() -> None:
    dense = Toy(MODEL.arrays, masked=())
    strategy = zerofl(FedAvg(), freeze_mask_after_round=1)
    manager = honest_manager(dense)
    first = play(strategy, manager, dense.parameters, 1)
    assert math.isnan(float(first.metrics["nonzero_ratio"]))
    with pytest.raises(RoundFailedError, match="round 2: the mask is to be frozen, but no reply"):
        play(strategy, manager, first.parameters, 2)
