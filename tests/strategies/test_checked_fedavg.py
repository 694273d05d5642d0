"""What the averaging strategies share: good replies in order, then who failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.common import NDArrays, parameters_to_ndarrays

from strategies.checked_fedavg import CheckedFedAvg
from strategies.replies import Failure, Reply
from tests.strategies.dense_federation import NAMES, PARAMETERS, START, answer, fit_res
from tests.strategies.federation import Node, managed, same_bits
from zerofl_flwr.errors import PayloadError


class Noting(CheckedFedAvg):
    """Notes in which order it is asked; refuses who has few samples."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_fit_clients=1, min_available_clients=1, **options)
        self.noted: list[Any] = []

    def check_reply(self, server_round: int, reply: Reply) -> None:
        if reply.result.num_examples < 5:
            raise PayloadError("too few", sender=str(reply.member), field="num_examples")

    def combine(self, server_round: int, good: Sequence[Reply]) -> NDArrays:
        self.noted.append([reply.member.partition_id for reply in good])
        return self.model.arrays

    def note_failures(self, server_round: int, failures: Sequence[Failure]) -> int:
        self.noted.append(list(failures))
        return len(failures)


def aggregated(strategy: Noting, failures: list[Failure], *examples: tuple[int, int]) -> Any:
    pairs: Any = [(answer(p, fit_res(START, n)).member, fit_res(START, n)) for p, n in examples]
    return strategy.aggregate_fit(3, pairs, failures)


def test_good_replies_come_in_partition_order_and_failures_after_them() -> None:
    strategy = Noting(array_names=NAMES)
    pairs = strategy.configure_fit(3, PARAMETERS, managed([Node(0)]))
    assert pairs[0][1].parameters is PARAMETERS
    lost = ValueError("lost")
    parameters, _ = aggregated(strategy, [lost], (9, 10), (2, 10), (4, 1), (1, 7))
    assert strategy.noted == [[1, 2, 9], [lost]]
    assert strategy.restarts == 1
    assert same_bits(parameters_to_ndarrays(parameters), START)
    assert strategy.model.names == NAMES


def test_without_a_good_reply_failures_are_heard_of_all_the_same() -> None:
    strategy = Noting()
    lost = ValueError("lost")
    assert aggregated(strategy, [lost], (4, 1)) == (None, {})
    assert strategy.noted == [[lost]]
    strict = Noting(accept_failures=False)
    assert aggregated(strict, [], (4, 1), (5, 10)) == (None, {})
    assert strict.noted == [[]]
    assert strict.restarts == 0
