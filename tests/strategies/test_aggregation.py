"""What becomes a model and what does not; memory; and all kinds of tensors and clients."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.common import (
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
)

from strategies import ZeroFL
from strategies.aggregation import Aggregation
from strategies.downlink import GlobalModel
from strategies.member import Member
from strategies.replies import Failure, Reply, ReplyChecker
from tests.strategies.federation import (
    Honest,
    Node,
    Toy,
    f32,
    honest_nodes,
    managed,
    play,
    same_bits,
    toy,
    trained,
)
from zerofl_flwr.errors import RoundFailedError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.settings import ZeroFLSettings


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
@pytest.mark.parametrize("kind", [FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad])
def test_integers_keep_the_servers_value_under_every_strategy(
    kind: type[FedAvgM], dtype: str
) -> None:
    steps = np.array([1, 0, 1], dtype)
    model = Toy({**toy().arrays, "steps": steps})
    wrapped = kind(initial_parameters=model.parameters)
    strategy = ZeroFL(wrapped, sparsity=0.8, mask_ratio=0.1)
    manager, parameters = managed(honest_nodes(model, [10, 20])), model.parameters
    for server_round in (1, 2):
        played = play(strategy, manager, parameters, server_round)
        assert same_bits(played.arrays[-1:], [steps])
        parameters = played.parameters


@pytest.mark.parametrize("per_client", [False, True])
def test_scalar_and_empty_tensors_survive(per_client: bool) -> None:
    model = Toy(
        {"scale": f32(2), "empty": np.zeros((0, 4), np.float32), "w": f32(np.eye(8))},
        masked=("empty", "w"),
    )
    strategy = ZeroFL(
        FedMedian() if per_client else FedAdam(initial_parameters=model.parameters),
        sparsity=0.8,
        mask_ratio=0.1,
        per_client=per_client,
    )
    played = play(strategy, managed(honest_nodes(model, [10, 20])), model.parameters, 1)
    assert [array.shape for array in played.arrays] == [(), (0, 4), (8, 8)]
    assert [array.dtype for array in played.arrays] == [np.dtype(np.float32)] * 3


@pytest.mark.parametrize("per_client", [False, True])
def test_a_client_that_masks_nothing_takes_part(per_client: bool) -> None:
    # One client in three uploads whole weights: its difference counts in full, theirs in part.
    model = Toy({"w": f32([[1, 2], [3, 4]])}, masked=("w",))
    dense = Toy(model.arrays, masked=())
    wholes = f32([[5, 6], [7, 8]])

    class Whole(Honest):
        def __call__(self, ins: FitIns) -> FitRes:
            plan = ZeroFLSettings(sparsity=0.5, mask_ratio=0.0, rule="top-k-diff").plan(1)
            return self.reply(plan, model.values, [wholes])

    nodes = [*honest_nodes(model, [1, 1]), Node(2, Whole(dense, 2, 2), cid="1002")]
    strategy = ZeroFL(
        FedTrimmedAvg(beta=0) if per_client else FedAvg(),
        sparsity=0.5,
        mask_ratio=0.0,
        rule="top-k-diff",
        per_client=per_client,
    )
    played = play(strategy, managed(nodes), model.parameters, 1)
    differences = np.zeros((2, 2))
    for partition in (0, 1):
        step = trained(model.values, 1, partition)[0] - model.values[0]
        kept = np.argsort(-np.abs(step).reshape(-1))[:2]
        part = np.zeros(4)
        part[kept] = step.reshape(-1)[kept]
        differences += part.reshape(2, 2) / (3 if per_client else 4)
    differences += (wholes - model.values[0]) / (3 if per_client else 2)
    np.testing.assert_allclose(played.arrays[0], model.values[0] + differences, rtol=1e-6)
    # That the first reply of the next round may mask nothing does not make the layer unknown.
    assert strategy.model.masked == [0]


class Returning(FedAvg):
    """Returns given arrays as the new model."""

    def __init__(self, arrays: list[Array] | None) -> None:
        super().__init__()
        self.arrays = arrays
        self.called = 0

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Failure],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        self.called += 1
        return None if self.arrays is None else ndarrays_to_parameters(self.arrays), {}


def spoiled(value: float, dtype: str = "f4") -> list[Array]:
    arrays = [array.astype(dtype) for array in toy().values]
    arrays[2][0, 0] = value
    return arrays


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (spoiled(np.nan), "the model that Returning made is not finite in layer fc.weight"),
        (spoiled(np.inf), "the model that Returning made is not finite in layer fc.weight"),
        # Finite as it came, but not in the model's own dtype.
        (spoiled(1e39, "f8"), "the model that Returning made is not finite in layer fc.weight"),
        (spoiled(1)[:3], r"the model that Returning made has shapes .*; expected"),
        (None, "Returning made no model of 2 good replies and 0 failures"),
    ],
)
def test_what_cannot_be_a_model_never_becomes_one(arrays: list[Array] | None, message: str) -> None:
    model = toy()
    strategy = ZeroFL(Returning(arrays), sparsity=0.8, mask_ratio=0.1)
    with pytest.raises(RoundFailedError, match=f"round 1: {message}"):
        play(strategy, managed(honest_nodes(model, [10, 20])), model.parameters, 1)
    assert same_bits(strategy.model.arrays, model.values)


def test_a_mean_that_overflows_never_reaches_the_wrapped_strategy() -> None:
    model = Toy({"w": np.full((2, 2), 60000, np.float16)}, masked=("w",))

    class Huge(Honest):
        def __call__(self, ins: FitIns) -> FitRes:
            plan = ZeroFLSettings(sparsity=0.5, mask_ratio=0.0, rule="top-k-diff").plan(1)
            # Finite itself: from -30000 to 30000, as if it had started elsewhere.
            low, high = np.full((2, 2), -30000, "f2"), np.full((2, 2), 30000, "f2")
            return self.reply(plan, [low], [high])

    wrapped = Returning(None)
    strategy = ZeroFL(wrapped, sparsity=0.5, mask_ratio=0.0, rule="top-k-diff")
    nodes = [Node(0, Huge(model, 0)), Node(1, Huge(model, 1))]
    with pytest.raises(RoundFailedError, match="the mean of the replies is not finite in layer"):
        play(strategy, managed(nodes), model.parameters, 1)
    assert wrapped.called == 0
    assert same_bits(strategy.model.arrays, model.values)


@pytest.mark.parametrize("aggregation", ["all-clients", "senders"])
def test_memory_does_not_grow_with_the_replies(aggregation: str) -> None:
    settings = ZeroFLSettings(sparsity=0.9, mask_ratio=0.0, aggregation=aggregation)
    plan = settings.plan(1)
    model = Toy({"w": np.zeros((200, 1000), np.float32)}, masked=("w",))
    replies = [
        Reply(
            Member(Node(partition), partition),
            Honest(model, partition).reply(plan, model.values, trained(model.values, partition)),
        )
        for partition in range(5)
    ]
    payload_bytes = sum(len(tensor) for tensor in replies[0].result.parameters.tensors)

    def peak(count: int) -> int:
        global_model = GlobalModel(sparse_downlink=True)
        global_model.load(model.parameters, plan)
        checker = ReplyChecker(global_model.specs, plan)
        aggregation = Aggregation(FedAvg(), global_model, checker, settings)
        good = [replies[index % 5] for index in range(count)]
        tracemalloc.start()
        aggregation.run(1, good, [])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert payload_bytes > 100_000
    assert abs(peak(50) - peak(5)) < payload_bytes


def test_names_and_masks_are_learned_from_any_good_reply() -> None:
    named, unnamed = toy(), toy()
    by_position = Toy({str(i): array for i, array in enumerate(unnamed.values)}, masked=())
    nodes: list[Node] = [
        Node(0, Honest(by_position, 0), cid="1000"),
        Node(1, Honest(named, 1), cid="1001"),
    ]
    strategy = ZeroFL(FedAvg(), sparsity=0.8, mask_ratio=0.1)
    play(strategy, managed(nodes), named.parameters, 1)
    assert strategy.model.names == named.names
    assert strategy.model.masked == [0, 2]


def test_options_of_settings_reach_the_accumulator() -> None:
    # The same replies under both denominators: a position that nobody sent is zero or stays.
    results: dict[str, Mapping[str, Any]] = {}
    for aggregation in ("all-clients", "senders"):
        model = toy()
        strategy = ZeroFL(FedAvg(), sparsity=0.9, mask_ratio=0.0, aggregation=aggregation)
        played = play(strategy, managed(honest_nodes(model, [10, 20])), model.parameters, 1)
        results[aggregation] = dict(zip(model.names, played.arrays, strict=True))
    paper, senders = (results[name]["fc.weight"] for name in ("all-clients", "senders"))
    unsent = paper == 0
    assert unsent.mean() > 0.75
    np.testing.assert_array_equal(senders[unsent], toy().arrays["fc.weight"][unsent])
    np.testing.assert_array_equal(results["all-clients"]["fc.bias"], results["senders"]["fc.bias"])
