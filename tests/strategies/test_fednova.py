"""FedNova: rounds worked out by hand, and what it is equal to where steps do not differ."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy.aggregate import aggregate_inplace

from strategies import FedNova
from strategies.fednova import local_norm
from strategies.replies import Failure
from strategies.state import check_resumable, load_strategy_state, strategy_state
from tests.strategies.dense_federation import NAMES, PARAMETERS, START, answer, fit_res
from tests.strategies.federation import Node, f32, managed, same_bits
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array


def started(momentum: float = 0.0, arrays: list[Array] | None = None, **options: Any) -> FedNova:
    """Build a strategy whose first round has been configured."""
    strategy = FedNova(momentum=momentum, min_available_clients=1, min_fit_clients=1, **options)
    parameters = PARAMETERS if arrays is None else ndarrays_to_parameters(arrays)
    strategy.configure_fit(1, parameters, managed([Node(0)]))
    return strategy


def reply(arrays: list[Array], examples: int, steps: Any, **metrics: Scalar) -> Any:
    return fit_res(arrays, examples, local_steps=steps, **{"round": 1, **metrics})


def aggregated(strategy: FedNova, *results: Any, failures: list[Failure] | None = None) -> Any:
    pairs = [(answer(p, result).member, result) for p, result in enumerate(results)]
    parameters, metrics = strategy.aggregate_fit(1, pairs, failures or [])  # type: ignore[arg-type]
    return None if parameters is None else parameters_to_ndarrays(parameters), metrics


def test_a_round_worked_out_by_hand() -> None:
    # Shares 1/4 and 3/4, so that tau_eff = 2/4 + 3 * 4/4 = 3.5; the changes divided by their steps
    # are -0.1 and -0.2, of which the mean is -0.175; and 1 - 3.5 * 0.175 = 0.3875.
    strategy = started(arrays=[f32([1.0])])
    arrays, metrics = aggregated(strategy, reply([f32([0.8])], 10, 2), reply([f32([0.2])], 30, 4))
    assert arrays[0] == pytest.approx([0.3875], rel=1e-6)
    assert arrays[0].dtype == np.float32
    assert metrics == {}
    # FedAvg would be at 0.8 / 4 + 3 * 0.2 / 4 = 0.35.


def test_a_round_with_momentum_worked_out_by_hand() -> None:
    # With momentum 1/2 two steps add up to 1.5 + 1 = 2.5, four to 1.875 + 1.75 + 1.5 + 1 = 6.125.
    # tau_eff = 2.5 / 4 + 3 * 6.125 / 4 = 5.21875; the mean of -0.2 / 2.5 and -0.8 / 6.125 by shares
    # is -0.02 - 0.6 / 6.125 = -0.11795918; and 1 - 5.21875 * 0.11795918 = 0.38440051.
    strategy = started(0.5, arrays=[f32([1.0])])
    arrays, _ = aggregated(strategy, reply([f32([0.8])], 10, 2), reply([f32([0.2])], 30, 4))
    assert arrays[0] == pytest.approx([0.38440051], rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 17])
def test_what_steps_add_up_to_is_how_far_torch_goes(momentum: float, steps: int) -> None:
    parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=momentum)
    for _ in range(steps):  # each gradient is 1
        parameter.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert local_norm(steps, momentum) == pytest.approx(-float(parameter.detach()), rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_as_many_steps_for_all_it_is_fedavg(momentum: float) -> None:
    generator = np.random.default_rng(3)
    models = [[a + generator.normal(size=a.shape).astype("f4") for a in START] for _ in range(4)]
    results = [reply(m, n, 7) for m, n in zip(models, (37, 5, 64, 8), strict=True)]
    arrays, _ = aggregated(started(momentum), *results)
    fedavg = aggregate_inplace([(answer(p, r).member, r) for p, r in enumerate(results)])
    for array, expected in zip(arrays, fedavg, strict=True):
        np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)
    other, _ = aggregated(started(momentum), *results[:3], reply(models[3], 8, 2))
    assert np.abs(other[0] - fedavg[0]).max() > 0.01


def test_one_client_is_fedavg_whatever_its_steps() -> None:
    arrays, _ = aggregated(started(), reply([a + f32(0.25) for a in START], 10, 13))
    assert same_bits(arrays, [a + f32(0.25) for a in START])


def test_statistics_take_the_mean_and_integers_stay() -> None:
    names = ["bn.weight", "bn.running_var", "bn.num_batches_tracked"]
    start = [f32([1.0]), f32([1.0]), np.array(5, np.int64)]
    replies = [
        reply([f32([0.8]), f32([2.0]), np.array(9, np.int64)], 10, 2),
        reply([f32([0.2]), f32([4.0]), np.array(11, np.int64)], 30, 4),
    ]
    arrays, _ = aggregated(started(arrays=start, array_names=names), *replies)
    assert arrays[0] == pytest.approx([0.3875], rel=1e-6)
    assert arrays[1] == pytest.approx([2 / 4 + 3 * 4 / 4])
    assert (arrays[2].dtype, int(arrays[2])) == (np.int64, 5)


def test_the_message_tells_round_and_momentum_beside_what_the_user_sends() -> None:
    strategy = FedNova(
        momentum=0.9,
        min_fit_clients=2,
        on_fit_config_fn=lambda number: {"learning-rate": 0.1 / number},
    )
    pairs = strategy.configure_fit(2, PARAMETERS, managed([Node(0), Node(1)]))
    assert [ins.config for _, ins in pairs] == [
        {"learning-rate": 0.05, "round": 2, "momentum": 0.9}
    ] * 2
    assert pairs[0][1] is pairs[1][1]
    assert pairs[0][1].parameters is PARAMETERS
    assert repr(strategy) == "FedNova(momentum=0.9)"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (reply(START, 10, -1), "client 1, field local_steps: expected a whole number from 1"),
        (reply(START, 10, 0), "client 1, field local_steps: .* got 0"),
        (reply(START, 10, 2.0), r"client 1, field local_steps: .* got 2\.0"),
        (reply(START, 10, True), "client 1, field local_steps: .* got True"),
        (reply(START, 10, 10**10), "client 1, field local_steps: .* got 10000000000"),
        (fit_res(START, round=1), "client 1, field local_steps: .* got None"),
        (reply(START, 10, 2, round=2), "client 1, field round: a reply to round 1 expected, to 2"),
        (fit_res(START, local_steps=2), "client 1, field round: .* to None came"),
        (reply(START, -3, 2), "client 1, field num_examples: num_examples is -3"),
        (reply(START[:1], 10, 2), "client 1, field arrays: expected 2 arrays, got 1"),
        (reply([START[0] * f32(np.nan), START[1]], 10, 2), "client 1, layer fc.weight, field val"),
        (reply([START[0], f32([1.0])], 10, 2), "client 1, layer fc.bias, field shape"),
    ],
)
def test_a_bad_reply_is_refused_by_client_and_field_and_leaves_no_trace(
    bad: Any, message: str, flower_log: pytest.LogCaptureFixture
) -> None:
    good = reply([a * f32(0.5) for a in START], 10, 3)
    without, _ = aggregated(started(array_names=NAMES), good)
    arrays, _ = aggregated(started(array_names=NAMES), good, bad)
    assert same_bits(arrays, without)
    assert flower_log.messages[-1].startswith("round 1: client 1, ")
    assert re.search(message, flower_log.messages[-1])
    assert aggregated(started(array_names=NAMES), bad) == (None, {})


def test_failures_end_the_round_where_they_are_not_accepted() -> None:
    good = reply(START, 10, 3)
    strategy = started(accept_failures=False)
    assert aggregated(strategy, good, reply(START, 10, 0)) == (None, {})
    assert aggregated(strategy, good, failures=[ValueError("lost")]) == (None, {})
    assert aggregated(strategy, good)[0] is not None


def test_the_users_metrics_are_those_of_the_good_replies() -> None:
    strategy = started(fit_metrics_aggregation_fn=lambda told: {"n": sum(n for n, _ in told)})
    results = [reply(START, 10, 3), reply(START, 20, 0), reply(START, 40, 3)]
    assert aggregated(strategy, *results)[1] == {"n": 50}


def test_a_model_that_is_not_finite_is_an_error() -> None:
    strategy = started(arrays=[f32([-3e38])])
    # Taken for one step of mean 500, the second client's change is multiplied by that.
    results = [reply([f32([-3e38])], 1, 1000), reply([f32([3e38])], 1, 1)]
    with pytest.raises(RoundFailedError, match="round 1: the model that FedNova made is not fin"):
        aggregated(strategy, *results)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_a_momentum_that_cannot_be_is_refused(momentum: float) -> None:
    with pytest.raises(SettingsError, match=r"momentum is .*; it must be in \[0, 1\)"):
        FedNova(momentum=momentum)


def test_an_option_that_fedavg_does_not_have_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"FedNova: .*unexpected keyword argument 'fraction'"):
        FedNova(fraction=0.5)


def test_there_is_no_state_and_no_other_strategys() -> None:
    strategy = FedNova()
    check_resumable(strategy)
    assert strategy_state(strategy) == {}
    load_strategy_state(strategy, {})
    with pytest.raises(SettingsError, match="FedNova has no state; this one holds control/00000"):
        load_strategy_state(strategy, {"control/00000": f32([1.0])})
