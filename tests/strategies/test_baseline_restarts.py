"""Clients under a baseline that have lost what they keep: the run goes on, and they begin again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, Scalar

from strategies import Alone, Baseline, BaselineRoundReport, Scaffold
from strategies.client_rounds import StatePlan
from tests.strategies.dense_federation import PARAMETERS, START, node
from tests.strategies.federation import managed, play, same_bits, trained
from zerofl_flwr.errors import ClientFailedError, RoundFailedError
from zerofl_flwr.model_arrays import Array

LOST: set[int] = set()
"""Clients whose state is gone."""
ILL: set[int] = set()
"""Clients that fail in any other way."""


@pytest.fixture(autouse=True)
def _nobody() -> None:
    LOST.clear()
    ILL.clear()


def lasting(partition: int, ins: FitIns, arrays: list[Array]) -> Any:
    """Reply as the client of Scaffold does, or that of Alone, as long as there is its state."""
    plan = StatePlan.from_config(ins.config)
    assert plan is not None
    if partition in ILL:
        raise ClientFailedError("out of memory")
    if partition in LOST and plan.state_round:
        raise ClientFailedError(
            f"client {partition} of run run: the state of round {plan.state_round} is lost: why"
        )
    metrics: dict[str, Scalar] = {"round": plan.server_round}
    if "alone" in ins.config:
        return [], 10, metrics
    return trained(arrays, plan.server_round, partition), 10, metrics


NODES = [node(p, lambda ins, arrays, p=p: lasting(p, ins, arrays)) for p in range(3)]  # type: ignore[misc]


def baseline(kind: str, reports: list[BaselineRoundReport], **options: Any) -> Baseline:
    everybody: dict[str, Any] = {"min_fit_clients": 3, "min_available_clients": 3}
    inner: Alone | Scaffold = Scaffold(num_clients=3, **everybody)
    if kind == "alone":
        inner = Alone(on_fit_config_fn=lambda number: {"alone": True}, **everybody)
    return Baseline(inner, on_round=reports.append, **options)


def state_rounds(strategy: Baseline, server_round: int) -> list[int]:
    assert isinstance(strategy.strategy, Alone | Scaffold)
    return [strategy.strategy.rounds.plan(p, server_round).state_round for p in range(3)]


@pytest.mark.parametrize("kind", ["scaffold", "alone"])
def test_a_run_goes_on_where_everybody_has_lost_its_state(kind: str) -> None:
    reports: list[BaselineRoundReport] = []
    strategy = baseline(kind, reports)
    first = play(strategy, managed(NODES), PARAMETERS, 1)
    assert state_rounds(strategy, 2) == [1, 1, 1]
    LOST.update(range(3))
    second = play(strategy, managed(NODES), first.parameters, 2)
    assert same_bits(second.arrays, first.arrays)
    told = [second.metrics[name] for name in ("replies", "failures", "restarts")]
    assert told == [0, 3, 3]
    assert [client.failure for client in reports[1].clients] == [
        f"client {p}: client {p} of run run: the state of round 1 is lost: why" for p in range(3)
    ]
    assert np.isnan(second.metrics["train_loss"])
    assert state_rounds(strategy, 3) == [0, 0, 0]
    third = play(strategy, managed(NODES), second.parameters, 3)
    assert (third.metrics["replies"], third.metrics["restarts"]) == (3, 0)
    assert same_bits(third.arrays, START) == (kind == "alone")
    assert state_rounds(strategy, 4) == [3, 3, 3]


def test_too_few_good_replies_make_no_model_until_clients_have_begun_again(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    reports: list[BaselineRoundReport] = []
    strategy = baseline("alone", reports, min_replies=3)
    first = play(strategy, managed(NODES), PARAMETERS, 1)
    LOST.add(1)
    second = play(strategy, managed(NODES), first.parameters, 2)
    few = "2 good replies, 3 needed"
    assert [client.failure.partition(" of ")[0] for client in reports[1].clients] == [
        f"client 0: left out: {few}",
        "client 1: client 1",
        f"client 2: left out: {few}",
    ]
    assert all(client.uplink_bytes > 0 for client in reports[1].clients[::2])
    assert (second.metrics["replies"], second.metrics["restarts"]) == (0, 1)
    message = f"round 2: {few}: the model stays as it is, until clients have begun again"
    assert message in flower_log.messages
    # Who was left out goes on from the state before.
    assert state_rounds(strategy, 3) == [1, 0, 1]
    third = play(strategy, managed(NODES), second.parameters, 3)
    assert (third.metrics["replies"], state_rounds(strategy, 4)) == (3, [3, 3, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_replies": 3}, "round 2: 1 good replies, 3 needed. client 0: .* is lost: why; clie"),
        ({"on_failure": "raise"}, "round 2: client 0: client 0 of run run: the state of round 1 "),
    ],
)
def test_a_run_ends_as_before_where_that_does_not_help(
    options: dict[str, Any], message: str
) -> None:
    strategy = baseline("scaffold", [], **options)
    first = play(strategy, managed(NODES), PARAMETERS, 1)
    LOST.add(0)
    ILL.add(2)
    with pytest.raises(RoundFailedError, match=message):
        play(strategy, managed(NODES), first.parameters, 2)
    assert state_rounds(strategy, 2) == [1, 1, 1]
