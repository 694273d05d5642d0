"""Training alone, at the server: what goes down once, and nothing that comes up."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.common import (
    EvaluateIns,
    FitRes,
    parameters_to_ndarrays,
)

from strategies import Alone
from strategies.client_rounds import StatePlan
from strategies.member import MemberFailedError
from strategies.state import check_resumable, load_strategy_state, strategy_state
from tests.strategies.dense_federation import (
    PARAMETERS,
    START,
    aggregated,
    asked,
    fit_res,
    has_lost,
)
from tests.strategies.federation import Node, managed, same_bits
from zerofl_flwr.errors import SettingsError

CLIENTS = managed([Node(partition) for partition in range(3)])


def alone(**options: Any) -> Alone:
    return Alone(**{"min_fit_clients": 1, "fraction_fit": 1.0, **options})


def sent_to_test(strategy: Alone, server_round: int) -> dict[int, EvaluateIns]:
    pairs = strategy.configure_evaluate(server_round, PARAMETERS, CLIENTS)
    return {int(client.cid): ins for client, ins in pairs}


def reply(server_round: int, examples: int = 10) -> FitRes:
    return fit_res([], examples, round=server_round)


def test_the_common_start_goes_down_until_a_client_has_trained() -> None:
    strategy = alone(run="a-run", on_fit_config_fn=lambda number: {"learning-rate": 0.5})
    first = asked(strategy, 1)
    assert first[0] is first[1] is first[2]
    assert same_bits(parameters_to_ndarrays(first[0].parameters), START)
    assert StatePlan.from_config(first[0].config) == StatePlan("a-run", 1, 0)
    assert first[0].config["learning-rate"] == 0.5
    arrays = aggregated(strategy, 1, reply(1), reply(1))
    assert arrays is not None
    assert same_bits(arrays, START)
    second = asked(strategy, 2)
    assert [len(second[p].parameters.tensors) for p in range(3)] == [0, 0, 2]
    assert StatePlan.from_config(second[0].config) == StatePlan("a-run", 2, 1)
    assert StatePlan.from_config(second[2].config) == StatePlan("a-run", 2, 0)
    assert [strategy.has_trained(p) for p in range(3)] == [True, True, False]


def test_clients_test_their_own_network_or_the_common_start() -> None:
    strategy = alone()
    asked(strategy, 1)
    aggregated(strategy, 1, reply(1))
    tests = sent_to_test(strategy, 1)
    assert [len(tests[p].parameters.tensors) for p in range(3)] == [0, 2, 2]
    assert StatePlan.from_config(tests[0].config) == StatePlan("run", 1, 1)
    assert tests[1] is tests[2]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (reply(2), "client 0, field round: a reply to round 1 expected, to 2 came"),
        (fit_res([]), "client 0, field round: a reply to round 1 expected, to None came"),
        (fit_res(START, round=1), "client 0, field arrays: expected 0 arrays, got 2"),
        (reply(1, 0), "client 0, field num_examples: num_examples is 0"),
    ],
)
def test_a_bad_reply_is_refused_and_its_client_goes_on_from_before(
    bad: FitRes, message: str, flower_log: pytest.LogCaptureFixture
) -> None:
    strategy = alone()
    asked(strategy, 1)
    arrays = aggregated(strategy, 1, bad, reply(1))
    assert arrays is not None
    assert any(f"round 1: {message}" in line for line in flower_log.messages)
    assert [strategy.has_trained(p) for p in (0, 1)] == [False, True]
    nobody = alone()
    asked(nobody, 1)
    assert aggregated(nobody, 1, bad) is None


def test_a_client_that_has_lost_its_network_begins_again(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    strategy = alone(run="a-run")
    asked(strategy, 1)
    aggregated(strategy, 1, reply(1), reply(1), reply(1))
    asked(strategy, 2)
    lost = has_lost(2, "a-run", 1)
    aggregated(strategy, 2, reply(2), failures=[lost, MemberFailedError(1, "ill")])
    assert "client 2 has lost its network, and begins again" in flower_log.messages[-1]
    assert strategy.restarts == 1
    third = asked(strategy, 3)
    assert [len(third[p].parameters.tensors) for p in range(3)] == [0, 0, 2]
    assert [strategy.rounds.plan(p, 3).state_round for p in range(3)] == [2, 1, 0]
    aggregated(strategy, 3, reply(3), reply(3), reply(3))
    assert strategy.restarts == 0


def test_a_state_comes_back() -> None:
    strategy = alone()
    check_resumable(strategy)
    asked(strategy, 1)
    aggregated(strategy, 1, reply(1), reply(1))
    other = alone()
    load_strategy_state(other, strategy_state(strategy))
    assert [other.rounds.plan(p, 2).state_round for p in range(3)] == [1, 1, 0]
    assert repr(other) == "Alone()"
    with pytest.raises(SettingsError, match="this is no state of a run's clients"):
        other.load_state_arrays({"control/00000": START[0]})


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingsError, match="'a b' cannot name a run"):
        alone(run="a b")
    with pytest.raises(SettingsError, match=r"Alone: .* unexpected keyword argument 'seed'"):
        alone(seed=1)
