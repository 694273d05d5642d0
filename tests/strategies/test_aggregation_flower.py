"""The new model is what Flower's strategies would have made of the densified replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from flwr.common import (
    FitRes,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
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
    Krum,
    Strategy,
)
from flwr.server.strategy.aggregate import aggregate_inplace

from strategies import ZeroFL
from tests.strategies.federation import (
    OK,
    Node,
    Played,
    Toy,
    densified,
    honest_nodes,
    managed,
    play,
    same_bits,
    toy,
)
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import NotSent, TensorSpec, decode

EXAMPLES = [10, 7, 31, 100, 52]
RULES = ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"]
PLAIN: dict[str, Callable[[Parameters], Strategy]] = {
    "FedAvg": lambda start: FedAvg(initial_parameters=start),
    "FedAvgM": lambda start: FedAvgM(
        initial_parameters=start, server_momentum=0.9, server_learning_rate=0.5
    ),
    "FedAdam": lambda start: FedAdam(initial_parameters=start, eta=0.05),
    "FedYogi": lambda start: FedYogi(initial_parameters=start, eta=0.05),
    "FedAdagrad": lambda start: FedAdagrad(initial_parameters=start, eta=0.05),
}


def dense_replies(model: Toy, played: Played, before: Sequence[Array]) -> list[list[Array]]:
    """Densify a round's replies with decode and numpy alone, in partition order.

    Differences stay differences; integers are the server's.
    """
    specs = [TensorSpec(array.shape, array.dtype) for array in model.values]
    replies = []
    for _, result in sorted(played.results.items()):
        entries = decode(result.parameters.tensors, specs, sender="test").entries
        replies.append(
            [
                old if isinstance(entry.data, NotSent) else densified(entry.data)
                for entry, old in zip(entries, before, strict=True)
            ]
        )
    return replies


def plain_results(replies: Sequence[Sequence[Array]]) -> list[tuple[ClientProxy, FitRes]]:
    return [
        (Node(i), FitRes(OK, ndarrays_to_parameters(list(arrays)), count, {}))
        for i, (arrays, count) in enumerate(zip(replies, EXAMPLES, strict=True))
    ]


def plain_mean(model: Toy, rule: str, played: Played, before: Sequence[Array]) -> list[Array]:
    """Average the densified replies with Flower's own sum."""
    mean = aggregate_inplace(plain_results(dense_replies(model, played, before)))
    if rule == "top-k-weights":
        return mean
    masked = model.masked_positions
    return [
        before[position] + array if position in masked else array
        for position, array in enumerate(mean)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", list(PLAIN))
def test_server_optimizers_get_the_densified_mean(name: str, rule: str, dtype: str) -> None:
    model = toy(dtype)
    plain = PLAIN[name](model.parameters)
    strategy = ZeroFL(PLAIN[name](model.parameters), sparsity=0.8, mask_ratio=0.1, rule=rule)
    manager, parameters = managed(honest_nodes(model, EXAMPLES)), model.parameters
    for server_round in (1, 2, 3):
        before = parameters_to_ndarrays(parameters)
        played = play(strategy, manager, parameters, server_round)
        mean = [array.astype("f4") for array in plain_mean(model, rule, played, before)]
        combined = FitRes(OK, ndarrays_to_parameters(mean), sum(EXAMPLES), {})
        expected, _ = plain.aggregate_fit(server_round, [(Node(0), combined)], [])
        assert expected is not None
        parameters = played.parameters
        assert [array.dtype.name for array in played.arrays] == [dtype] * 4
        for array, other in zip(played.arrays, parameters_to_ndarrays(expected), strict=True):
            np.testing.assert_array_equal(array, other.astype(dtype))
    assert parameters.tensors != model.parameters.tensors


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "build",
    [
        lambda: Krum(num_malicious_clients=1),
        lambda: Krum(num_malicious_clients=1, num_clients_to_keep=2),
        FedMedian,
        lambda: FedTrimmedAvg(beta=0.3),
    ],
    ids=["Krum", "MultiKrum", "FedMedian", "FedTrimmedAvg"],
)
def test_per_client_strategies_get_the_densified_replies(
    build: Callable[[], FedAvg], rule: str
) -> None:
    model = toy()
    strategy = ZeroFL(build(), sparsity=0.8, mask_ratio=0.1, rule=rule, per_client=True)
    played = play(strategy, managed(honest_nodes(model, EXAMPLES)), model.parameters, 1)
    replies = dense_replies(model, played, model.values)
    if rule != "top-k-weights":
        for arrays in replies:
            for position in model.masked_positions:
                arrays[position] = model.values[position] + arrays[position]
    expected, _ = build().aggregate_fit(1, plain_results(replies), [])
    assert expected is not None
    for array, other in zip(played.arrays, parameters_to_ndarrays(expected), strict=True):
        np.testing.assert_array_equal(array, other.astype("f4"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("aggregation", ["all-clients", "senders"])
@pytest.mark.parametrize(("sparsity", "mask_ratio"), [(0, 0), (0.9, 0.9)])
def test_dense_uploads_give_plain_fedavg_bit_for_bit(
    sparsity: float, mask_ratio: float, aggregation: str, rule: str, dtype: str
) -> None:
    model = toy(dtype)
    strategy = ZeroFL(
        FedAvg(), sparsity=sparsity, mask_ratio=mask_ratio, aggregation=aggregation, rule=rule
    )
    played = play(strategy, managed(honest_nodes(model, EXAMPLES)), model.parameters, 1)
    replies = dense_replies(model, played, model.values)
    plain, _ = FedAvg().aggregate_fit(1, plain_results(replies), [])
    assert plain is not None
    assert same_bits(played.arrays, parameters_to_ndarrays(plain))


@pytest.mark.parametrize("rule", RULES)
def test_statistics_go_past_the_server_optimizer(rule: str) -> None:
    model = toy(batch_norm=True)
    strategy = ZeroFL(
        FedAdam(initial_parameters=model.parameters, eta=5.0),
        sparsity=0.8,
        mask_ratio=0.1,
        rule=rule,
    )
    manager, parameters = managed(honest_nodes(model, EXAMPLES)), model.parameters
    for server_round in (1, 2):
        before = parameters_to_ndarrays(parameters)
        played = play(strategy, manager, parameters, server_round)
        mean = plain_mean(model, rule, played, before)
        new = dict(zip(model.names, played.arrays, strict=True))
        for name in ("bn.running_mean", "bn.running_var"):
            assert same_bits([new[name]], [mean[model.names.index(name)]])
        assert new["bn.num_batches_tracked"].dtype == np.int64
        assert int(new["bn.num_batches_tracked"]) == 7
        # Such a step would have thrown the rest far from the mean, as it does the weights.
        assert np.abs(new["conv.bias"] - mean[1]).max() > 1
        parameters = played.parameters
