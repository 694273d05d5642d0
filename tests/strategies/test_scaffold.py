"""SCAFFOLD's server: rounds worked out by hand, bad replies, lost control variates, resume."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.common import (
    FitRes,
    parameters_to_ndarrays,
)
from flwr.server.strategy.aggregate import aggregate_inplace

from strategies import Scaffold
from strategies.client_rounds import StatePlan
from strategies.member import MemberFailedError
from strategies.state import check_resumable, load_strategy_state, strategy_state
from tests.strategies.dense_federation import (
    NAMES,
    START,
    aggregated,
    answer,
    asked,
    fit_res,
    has_lost,
)
from tests.strategies.federation import f32, same_bits
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array

ZEROS = [np.zeros_like(array) for array in START]


def scaffold(num_clients: int = 2, **options: Any) -> Scaffold:
    one = {"min_fit_clients": 1, "min_evaluate_clients": 1, "min_available_clients": 1}
    return Scaffold(num_clients=num_clients, **{**one, **options})


def reply(weights: Sequence[Array], change: Sequence[Array], n: int = 10, **metrics: Any) -> FitRes:
    return fit_res([*weights, *change], n, **{"round": 1, **metrics})


def test_a_round_worked_out_by_hand() -> None:
    # Two of N = 4 clients reply: x = 1 + mean(-0.19, 0.4), and c = 2/4 * mean(0.95, -4).
    strategy = scaffold(4)
    asked(strategy, 1, [f32([1.0])])
    first = reply([f32([0.81])], [f32([0.95])], 10)
    arrays = aggregated(strategy, 1, first, reply([f32([1.4])], [f32([-4.0])], 999))
    assert arrays is not None
    assert arrays[0] == pytest.approx([1.105], rel=1e-6)
    assert strategy.control[0] == pytest.approx([-0.7625], rel=1e-6)
    # The next round adds to it, also where a single client replies.
    sent = asked(strategy, 2, arrays)
    assert parameters_to_ndarrays(sent[0].parameters)[1] == pytest.approx([-0.7625], rel=1e-6)
    arrays = aggregated(strategy, 2, reply([f32([1.2])], [f32([0.2])], round=2))
    assert arrays is not None
    assert arrays[0] == pytest.approx([1.2], rel=1e-6)
    assert strategy.control[0] == pytest.approx([-0.7625 + 0.2 / 4], rel=1e-6)


def test_the_servers_learning_rate_lengthens_its_step_alone() -> None:
    strategy = scaffold(4, server_learning_rate=0.5)
    asked(strategy, 1, [f32([1.0])])
    replies = [reply([f32([0.81])], [f32([0.95])]), reply([f32([1.4])], [f32([-4.0])])]
    arrays = aggregated(strategy, 1, *replies)
    assert arrays is not None
    assert arrays[0] == pytest.approx([1.0525], rel=1e-6)
    assert strategy.control[0] == pytest.approx([-0.7625], rel=1e-6)


def test_without_control_variates_it_is_fedavg_of_equal_clients_bit_for_bit() -> None:
    generator = np.random.default_rng(1)
    models = [[a + generator.normal(size=a.shape).astype("f4") for a in START] for _ in range(5)]
    strategy = scaffold(5)
    asked(strategy, 1, clients=5)
    results = [reply(model, ZEROS, 1) for model in models]
    arrays = aggregated(strategy, 1, *results)
    plain = [(answer(p, fit_res(m, 1)).member, fit_res(m, 1)) for p, m in enumerate(models)]
    assert arrays is not None
    assert same_bits(arrays, aggregate_inplace(plain))  # type: ignore[arg-type]
    assert same_bits(strategy.control, ZEROS)


def test_the_message_holds_model_control_variate_and_plan() -> None:
    strategy = scaffold(3, run="a-run", on_fit_config_fn=lambda number: {"learning-rate": 0.5})
    sent = asked(strategy, 1, clients=3)
    assert sent[0] is sent[1] is sent[2]
    assert same_bits(parameters_to_ndarrays(sent[0].parameters), [*START, *ZEROS])
    assert sent[0].config["learning-rate"] == 0.5
    assert StatePlan.from_config(sent[0].config) == StatePlan("a-run", 1, 0)
    aggregated(strategy, 1, reply(START, START), reply(START, START))
    sent = asked(strategy, 2, clients=3)
    assert sent[0] is sent[1] is not sent[2]
    assert [StatePlan.from_config(sent[p].config) for p in (0, 2)] == [
        StatePlan("a-run", 2, 1),
        StatePlan("a-run", 2, 0),
    ]
    assert repr(strategy) == "Scaffold(num_clients=3, server_learning_rate=1.0)"


def test_integers_have_no_control_variate_and_statistics_take_the_mean() -> None:
    names = ["bn.weight", "bn.running_mean", "bn.num_batches_tracked"]
    strategy = scaffold(2, server_learning_rate=0.5, array_names=names)
    start = [f32([1.0]), f32([1.0]), np.array(5, np.int64)]
    sent = asked(strategy, 1, start)
    assert len(sent[0].parameters.tensors) == 5
    change, count = [f32([0.5]), f32([0.0])], np.array(9, np.int64)
    trained = [[f32([3.0]), f32([mean]), count] for mean in (1.0, 3.0)]
    arrays = aggregated(strategy, 1, *[reply(one, change) for one in trained])
    assert arrays is not None
    assert same_bits(arrays, [f32([2.0]), f32([2.0]), np.array(5, np.int64)])
    assert same_bits(strategy.control, change)


NAN = [START[0], f32([np.nan, 0])]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (reply(NAN, ZEROS), "client 1, layer fc.bias, field values: 1 values are not finite"),
        (reply(START, NAN), "client 1, layer fc.bias, field control_variates: 1 values are not"),
        (reply(START, [ZEROS[0] + f32(np.inf), ZEROS[1]]), "layer fc.weight, field control_varia"),
        (reply([START[0], f32([1])], ZEROS), "client 1, layer fc.bias, field shape: expected"),
        (
            reply(START, [ZEROS[0], f32([1])]),
            r"client 1, layer fc.bias, field control_variates: expected shape \(2,\), got \(1,\)",
        ),
        (reply(START, [np.zeros((2, 2)), ZEROS[1]]), "field control_variates: expected float32"),
        (reply(START, []), "client 1, field control_variates: the reply holds a model and no cha"),
        (reply(START, ZEROS[:1]), "client 1, field arrays: expected 4 arrays, got 3"),
        (reply(START, [*ZEROS, ZEROS[0]]), "client 1, field arrays: expected 4 arrays, got 5"),
        (reply(START, ZEROS, round=2), "client 1, field round: a reply to round 1 expected, to 2"),
        (fit_res([*START, *ZEROS]), "client 1, field round: .* to None came"),
        (reply(START, ZEROS, -1), "client 1, field num_examples: num_examples is -1"),
    ],
)
def test_a_bad_reply_is_refused_by_client_and_field_and_leaves_no_trace(
    bad: FitRes, message: str, flower_log: pytest.LogCaptureFixture
) -> None:
    good = reply([a * f32(0.5) for a in START], START)
    outcomes = []
    for results in ((good,), (good, bad)):
        strategy = scaffold(2, array_names=NAMES)
        asked(strategy, 1)
        outcomes.append((aggregated(strategy, 1, *results), strategy_state(strategy)))
    assert re.search(message, flower_log.messages[-1])
    assert flower_log.messages[-1].startswith("round 1: client 1, ")
    (arrays, state), (with_bad, state_with_bad) = outcomes
    assert arrays is not None
    assert with_bad is not None
    assert same_bits(with_bad, arrays)
    assert state.keys() == state_with_bad.keys()
    assert all(np.array_equal(state[name], state_with_bad[name]) for name in state)
    assert state["clients/ids"].tolist() == [0]


def test_a_round_of_bad_replies_changes_nothing() -> None:
    strategy = scaffold(2)
    asked(strategy, 1)
    assert aggregated(strategy, 1, reply(START, START), reply(START, START)) is not None
    before = {name: array.copy() for name, array in strategy_state(strategy).items()}
    asked(strategy, 2)
    assert aggregated(strategy, 2, reply(START, START), reply(NAN, ZEROS, round=2)) is None
    after = strategy_state(strategy)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_more_clients_than_there_are_is_an_error_that_changes_nothing() -> None:
    strategy = scaffold(2)
    asked(strategy, 1, clients=3)
    message = "round 1: 3 clients have replied so far, but num_clients is 2"
    with pytest.raises(RoundFailedError, match=message):
        aggregated(strategy, 1, *[reply(START, START)] * 3)
    assert same_bits(strategy.control, ZEROS)
    assert len(strategy.rounds) == 0


def test_what_would_not_be_finite_is_an_error_that_changes_nothing() -> None:
    huge = [np.full_like(array, 3e38) for array in START]
    strategy = scaffold(1, array_names=NAMES, server_learning_rate=4.0)
    asked(strategy, 1, clients=1)
    message = "round 1: the model that Scaffold made is not finite in layer fc.weight"
    with pytest.raises(RoundFailedError, match=message):
        aggregated(strategy, 1, reply(huge, ZEROS))
    assert aggregated(strategy, 1, reply(START, huge)) is not None
    asked(strategy, 2, clients=1)
    message = "round 2: the control variate is not finite in layer fc.weight"
    with pytest.raises(RoundFailedError, match=message):
        aggregated(strategy, 2, reply(START, huge, round=2))
    assert same_bits(strategy.control, huge)
    assert strategy.rounds.plan(0, 3).state_round == 1


def test_after_a_lost_control_variate_all_begin_again(flower_log: pytest.LogCaptureFixture) -> None:
    strategy = scaffold(2, run="a-run")
    asked(strategy, 1)
    aggregated(strategy, 1, reply(START, START), reply(START, START))
    asked(strategy, 2)
    lost = has_lost(1, "a-run", 1)
    arrays = aggregated(strategy, 2, reply(START, START, round=2), failures=[lost])
    assert arrays is not None
    assert "client 1 has lost its control variate: those of all clients" in flower_log.messages[-1]
    assert strategy.restarts == 1
    sent = asked(strategy, 3)
    assert {StatePlan.from_config(ins.config) for ins in sent.values()} == {
        StatePlan("a-run", 3, 0)
    }
    assert same_bits(parameters_to_ndarrays(sent[0].parameters)[2:], ZEROS)


def test_another_failure_changes_nothing() -> None:
    strategy = scaffold(2)
    asked(strategy, 1)
    aggregated(strategy, 1, reply(START, START), reply(START, START))
    asked(strategy, 2)
    aggregated(strategy, 2, reply(START, ZEROS, round=2), failures=[MemberFailedError(1, "ill")])
    assert [strategy.rounds.plan(client, 3).state_round for client in (0, 1)] == [2, 1]
    assert strategy.restarts == 0
    assert same_bits(strategy.control, START)


def test_a_state_comes_back_bit_for_bit() -> None:
    strategy = scaffold(2)
    check_resumable(strategy)
    assert strategy_state(strategy).keys() == {"clients/ids", "clients/state-rounds"}
    asked(strategy, 1)
    aggregated(strategy, 1, reply(START, [a * f32(1 / 3) for a in START]))
    other = scaffold(2)
    load_strategy_state(other, strategy_state(strategy))
    assert same_bits(other.control, strategy.control)
    assert other.rounds.plan(0, 2) == strategy.rounds.plan(0, 2)
    with pytest.raises(SettingsError, match="this is no state of Scaffold: it holds momentum"):
        other.load_state_arrays({"momentum/00000": START[0]})
    with pytest.raises(SettingsError, match=r"the control variates .* are of another model"):
        asked(other, 2, [f32([1.0])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 0}, "num_clients is 0; it must be a whole number from 1"),
        ({"num_clients": 2.0}, r"num_clients is 2\.0; it must be a whole number from 1"),
        ({"server_learning_rate": 0.0}, r"server_learning_rate is 0\.0; it must be a positive"),
        ({"server_learning_rate": float("nan")}, "server_learning_rate is nan"),
        ({"run": "a/b"}, "'a/b' cannot name a run"),
        ({"fractoin_fit": 1.0}, "Scaffold: .*unexpected keyword argument 'fractoin_fit'"),
        ({"array_names": ["a", "a"]}, "array_names has 'a' more than once"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Scaffold(**{"num_clients": 2, **options})
