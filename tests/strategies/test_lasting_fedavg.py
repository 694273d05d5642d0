"""Strategies whose clients keep something: replies nobody asked for, and states that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from flwr.common import NDArrays

from strategies.lasting_fedavg import LastingFedAvg
from strategies.member import MemberFailedError
from strategies.replies import Failure, Reply
from tests.strategies.dense_federation import PARAMETERS, START, answer, fit_res, has_lost


class Keeping(LastingFedAvg):
    """Takes every reply that the base class lets through, and notes who begins again."""

    def __init__(self) -> None:
        super().__init__(run="a-run", min_fit_clients=1, min_available_clients=2)
        self.begun: list[tuple[int, int]] = []

    def combine(self, server_round: int, good: Sequence[Reply]) -> NDArrays:
        for reply in good:
            self.rounds.trained(reply.member.partition_id, server_round)
        return self.model.arrays

    def begin_again(self, server_round: int, client: int) -> None:
        self.begun.append((server_round, client))


def played(
    strategy: Keeping,
    server_round: int,
    clients: Sequence[int],
    failures: Sequence[Failure] = (),
    **reply: Any,
) -> None:
    """Ask clients 0 to 2, and take replies of some clients."""
    strategy.model.take(PARAMETERS)
    strategy.rounds.begin()
    for client in range(3):
        strategy.rounds.ask(client, server_round)
    result = fit_res(START, **{"examples": 10, "round": server_round, **reply})
    pairs: Any = [(answer(client, result).member, result) for client in clients]
    strategy.aggregate_fit(server_round, pairs, list(failures))


@pytest.mark.parametrize(
    ("client", "reply", "message"),
    [
        (3, {}, "client 3, field round: a reply came, but it was not asked in this round"),
        (1, {"round": 7}, "client 1, field round: a reply to round 1 expected, to 7 came"),
        (1, {"examples": 0}, "client 1, field num_examples"),
    ],
)
def test_a_reply_that_cannot_be_is_refused(
    client: int, reply: dict[str, Any], message: str, flower_log: pytest.LogCaptureFixture
) -> None:
    strategy = Keeping()
    played(strategy, 1, [client], **reply)
    assert message in flower_log.messages[-1]
    assert len(strategy.rounds) == 0


def test_who_has_lost_its_state_begins_again_and_nobody_else() -> None:
    strategy = Keeping()
    played(strategy, 1, [0, 1, 2])
    lost = has_lost(2, "a-run", 1)
    played(strategy, 2, [0], [lost, MemberFailedError(1, "ill")])
    assert strategy.begun == [(2, 2)]
    assert strategy.restarts == 1
    played(strategy, 3, [0, 1, 2])
    assert strategy.restarts == 0
