"""The wrapper around a baseline: the strategy's own result, metered, checked, in fixed order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.common import (
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from flwr.server.strategy.aggregate import aggregate_inplace

from strategies import (
    Baseline,
    BaselineRoundReport,
    FedNova,
    Scaffold,
    ZeroFL,
)
from strategies.client_rounds import StatePlan
from strategies.metering import message_bytes
from strategies.state import check_resumable, load_strategy_state, strategy_state
from tests.strategies.dense_federation import (
    EXAMPLES,
    NAMES,
    PARAMETERS,
    START,
    all_of,
    fit_res,
    node,
    plain_nodes,
    run,
)
from tests.strategies.federation import (
    Honest,
    Node,
    Toy,
    f32,
    managed,
    play,
    same_bits,
    trained,
)
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array


class Ordered(FedAvg):
    """Flower's FedAvg on replies in partition order, without any wrapper."""

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        ordered = sorted(results, key=lambda pair: int(pair[0].cid))
        return super().aggregate_fit(server_round, ordered, failures)


def test_fedavg_is_flowers_own_bit_for_bit() -> None:
    plain = run(all_of(Ordered, fraction_evaluate=0.0), plain_nodes())
    wrapped = run(Baseline(all_of(FedAvg, fraction_evaluate=0.0)), plain_nodes())
    assert same_bits(wrapped, plain)
    assert np.abs(plain[0] - START[0]).max() > 0.01


class DenseHonest(Honest):
    """Replies with plain arrays where there is no plan of ZeroFL's."""

    def __call__(self, ins: FitIns) -> FitRes:
        if "zerofl-server-round" in ins.config:
            return super().__call__(ins)
        before = parameters_to_ndarrays(ins.parameters)
        after = trained(before, int(ins.config["round"]), self.partition_id)
        return fit_res(after, self.examples)


def test_fedavg_in_the_wrapper_is_zerofl_without_sparsity_bit_for_bit() -> None:
    model = Toy(dict(zip(NAMES, START, strict=True)), masked=("fc.weight",))
    nodes = [Node(p, DenseHonest(model, p, n), cid=str(p)) for p, n in enumerate(EXAMPLES)]
    zerofl = ZeroFL(all_of(FedAvg, fraction_evaluate=0.0), sparsity=0.0, mask_ratio=0.0, seed=4)
    baseline = Baseline(all_of(FedAvg, fraction_evaluate=0.0), seed=4)
    assert same_bits(run(zerofl, nodes), run(baseline, nodes))


def test_a_round_is_reported_with_the_bytes_of_each_message() -> None:
    reports: list[BaselineRoundReport] = []
    strategy = Baseline(all_of(FedAvg, 3), on_round=reports.append)
    nodes = plain_nodes(3)
    played = play(strategy, managed(nodes), PARAMETERS, 4)
    (report,) = reports
    assert report.server_round == 4
    assert [client.partition_id for client in report.clients] == [0, 1, 2]
    down = {message_bytes(ins) for ins in played.instructions.values()}
    assert {client.downlink_bytes for client in report.clients} == down
    ups = [message_bytes(played.results[p]) for p in range(3)]
    assert [client.uplink_bytes for client in report.clients] == ups
    assert played.metrics["uplink_bytes"] == sum(ups)
    assert played.metrics["train_loss"] == 0.5
    assert played.metrics["replies"] == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: ([a[0] * f32(np.nan), a[1]], 10, {}), "client 1, layer fc.weight, field values"),
        (lambda a: ([a[0], a[1][:1]], 10, {}), "client 1, layer fc.bias, field shape"),
        (lambda a: (a[:1], 10, {}), "client 1, field arrays: expected 2 arrays, got 1"),
        (lambda a: (a, 0, {}), "client 1, field num_examples: num_examples is 0"),
        (lambda a: (a, 10, {"round": 3}), "client 1, field round: a reply to round 1 expected, to"),
    ],
)
def test_a_bad_reply_is_refused_counted_and_the_round_goes_on(
    spoil: Any, message: str, flower_log: pytest.LogCaptureFixture
) -> None:
    reports: list[BaselineRoundReport] = []
    strategy = Baseline(all_of(FedAvg, 3), array_names=NAMES, on_round=reports.append)
    nodes = plain_nodes(3)
    nodes[1] = node(1, lambda ins, arrays: spoil(arrays))
    played = play(strategy, managed(nodes), PARAMETERS, 1)
    good = [(0, played.results[0]), (2, played.results[2])]
    expected = aggregate_inplace([(nodes[p], result) for p, result in good])
    assert same_bits(played.arrays, expected)
    bad = reports[0].clients[1]
    assert bad.failure.startswith(message)
    assert (bad.num_examples, bad.uplink_bytes > 0) == (0, True)
    assert (played.metrics["replies"], played.metrics["failures"]) == (2, 1)
    assert any(line.startswith(f"round 1: {message}") for line in flower_log.messages)


def test_a_client_that_fails_is_named() -> None:
    def fail(ins: FitIns, arrays: list[Array]) -> Any:
        raise ValueError("out of memory")

    reports: list[BaselineRoundReport] = []
    strategy = Baseline(all_of(FedAvg, 3), on_round=reports.append)
    nodes = [*plain_nodes(2), node(2, fail)]
    play(strategy, managed(nodes), PARAMETERS, 1)
    assert reports[0].clients[2].failure == "client 2: out of memory"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_replies": 3}, "round 1: 2 good replies, 3 needed. client 2, field num_examples"),
        ({"on_failure": "raise"}, "round 1: client 2, field num_examples: num_examples is 0"),
    ],
)
def test_too_few_good_replies_end_the_run(options: dict[str, Any], message: str) -> None:
    strategy = Baseline(all_of(FedAvg, 3), **options)
    nodes = [*plain_nodes(2), node(2, lambda ins, arrays: (arrays, 0, {}))]
    with pytest.raises(RoundFailedError, match=message):
        play(strategy, managed(nodes), PARAMETERS, 1)


BN_NAMES = ["w", "bn.running_var", "bn.num_batches_tracked"]
BN_START = [f32([0.5, -1.0]), f32([1.0, 2.0]), np.array(4, np.int64)]


def counted(partition: int, ins: FitIns, arrays: list[Array]) -> Any:
    variance = f32([3.0, 5.0]) * f32(1 + partition)
    return [arrays[0] + f32(1 + partition), variance, np.array(9, np.int64)], 10, {}


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedYogi, partial(FedAvgM, server_momentum=0.9)])
def test_statistics_take_the_mean_and_integers_stay_under_any_strategy(kind: Any) -> None:
    start = ndarrays_to_parameters(BN_START)
    strategy = Baseline(
        kind(initial_parameters=start, min_fit_clients=2, fraction_evaluate=0.0),
        array_names=BN_NAMES,
    )
    nodes = [node(partition, partial(counted, partition)) for partition in range(2)]
    arrays = run(strategy, nodes, 1)
    assert same_bits(arrays[1:], [f32([4.5, 7.5]), np.array(4, np.int64)])
    assert arrays[0].dtype == np.float32
    assert (arrays[0] > BN_START[0]).all()


def test_a_server_optimizer_makes_its_own_model_of_the_replies() -> None:
    def adam() -> FedAdam:
        return all_of(FedAdam, eta=0.1, tau=0.01)  # type: ignore[no-any-return]

    plain = adam()
    nodes = plain_nodes()
    played = play(Baseline(adam()), managed(nodes), PARAMETERS, 1)
    results = [(nodes[p], played.results[p]) for p in range(5)]
    parameters, _ = plain.aggregate_fit(1, results, [])  # type: ignore[arg-type]
    assert parameters is not None
    expected = [array.astype(np.float32) for array in parameters_to_ndarrays(parameters)]
    assert same_bits(played.arrays, expected)


class Broken(FedAvg):
    """Makes what it is told to."""

    outcome: list[Array] | None = None

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        return None if self.outcome is None else ndarrays_to_parameters(self.outcome), {}


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (None, "round 1: Broken made no model of 3 good replies and 0 failures"),
        ([f32([1.0])], "round 1: the model that Broken made has shapes"),
        (
            [START[0] * f32(np.inf), START[1]],
            "the model that Broken made is not finite in layer fc.w",
        ),
    ],
)
def test_a_strategy_that_makes_no_good_model_is_an_error(outcome: Any, message: str) -> None:
    broken = all_of(Broken, 3)
    broken.outcome = outcome
    with pytest.raises(RoundFailedError, match=message):
        play(Baseline(broken, array_names=NAMES), managed(plain_nodes(3)), PARAMETERS, 1)


def lasting(partition: int, ins: FitIns, arrays: list[Array]) -> Any:
    """Reply as Scaffold's client does, with changes that depend on its plan."""
    plan = StatePlan.from_config(ins.config)
    assert plan is not None
    after = trained(arrays[:2], plan.server_round, partition)
    change = trained(arrays[2:], plan.server_round, plan.state_round, partition)
    metrics: dict[str, Scalar] = {"round": plan.server_round}
    return [*after, *change], 10, metrics


def test_own_strategies_work_in_the_wrapper_and_go_on_from_its_state() -> None:
    def scaffold() -> Baseline:
        strategy = Scaffold(
            num_clients=4, min_fit_clients=2, fraction_fit=0.0, min_available_clients=4
        )
        return Baseline(strategy, seed=2)

    nodes = [node(partition, partial(lasting, partition)) for partition in range(4)]
    unbroken = scaffold()
    parameters, states = PARAMETERS, []
    for number in range(1, 6):
        parameters = play(unbroken, managed(nodes), parameters, number).parameters
        states.append((parameters, strategy_state(unbroken)))
    resumed = scaffold()
    check_resumable(resumed)
    parameters, state = states[2]
    load_strategy_state(resumed, {name: array.copy() for name, array in state.items()})
    for number in (4, 5):
        parameters = play(resumed, managed(nodes), parameters, number).parameters
    assert parameters == states[-1][0]
    last, expected = strategy_state(resumed), states[-1][1]
    assert last.keys() == expected.keys()
    assert all(same_bits([last[name]], [expected[name]]) for name in last)


def test_a_bad_reply_leaves_the_state_of_an_own_strategy_untouched() -> None:
    strategy = Baseline(Scaffold(num_clients=1, min_fit_clients=1, min_available_clients=1))
    nodes = [node(0, partial(lasting, 0))]
    played = play(strategy, managed(nodes), PARAMETERS, 1)
    before = {name: array.copy() for name, array in strategy.state_arrays().items()}
    bad = [node(0, lambda ins, arrays: (arrays, 10, {"round": 1}))]
    message = "client 0, field round: a reply to round 2 expected, to 1 came"
    with pytest.raises(RoundFailedError, match=message):
        play(strategy, managed(bad), played.parameters, 2)
    after = strategy.state_arrays()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_fednova_in_the_wrapper_needs_its_steps() -> None:
    strategy = Baseline(all_of(FedNova, 2))
    nodes = [
        node(0, lambda ins, arrays: (arrays, 10, {"round": 1, "local_steps": 4})),
        node(1, lambda ins, arrays: (arrays, 10, {"round": 1, "local_steps": -4})),
    ]
    played = play(strategy, managed(nodes), PARAMETERS, 1)
    assert same_bits(played.arrays, START)
    assert played.metrics["failures"] == 1


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("fedavg", {}, "Baseline runs a flwr.server.strategy.Strategy; got 'fedavg'"),
        (FedAvg(), {"on_failure": "skipp"}, "unknown on_failure 'skipp'; did you mean 'skip'"),
        (FedAvg(), {"min_replies": 0}, "min_replies is 0; it must be a whole number from 1"),
    ],
)
def test_options_that_cannot_be_are_refused(strategy: Any, options: Any, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Baseline(strategy, **options)
    assert str(caught.value).startswith(message)


def test_it_names_its_strategy() -> None:
    assert repr(Baseline(FedNova(momentum=0.5))) == "Baseline(FedNova(momentum=0.5))"
    nothing: Parameters = ndarrays_to_parameters([])
    fedprox = Baseline(FedProx(proximal_mu=0.25, min_fit_clients=1, min_available_clients=1))
    ((_, ins),) = fedprox.configure_fit(1, nothing, managed(plain_nodes(1)))
    assert ins.config == {"proximal_mu": 0.25}
