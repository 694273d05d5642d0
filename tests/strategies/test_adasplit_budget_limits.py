"""A budget's limits one by one, and clients that tell or need something else than foretold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flwr.app import RecordDict
from flwr.common import FitRes

from strategies.budget import Budget
from tests.strategies.budgeted_runs import (
    CLIENTS,
    OWN,
    ROUNDS,
    budgeted,
    measured,
    nodes_of,
    play,
    total,
    uploads,
)


@pytest.mark.parametrize("mode", ["personal", "SplitFed"])
@pytest.mark.parametrize("name", ["bytes", "multiply_adds", "client_bytes", "client_multiply_adds"])
def test_each_limit_holds_by_itself(mode: str, name: str) -> None:
    free = measured(play(budgeted(None, mode), nodes_of()), mode)
    of_all = total(free)
    limit = {
        "bytes": 0.7 * of_all.bytes,
        "multiply_adds": 0.7 * of_all.ops,
        "client_bytes": 0.7 * min(costs.bytes for costs in free.values()),
        "client_multiply_adds": 0.7 * min(costs.client_ops for costs in free.values()),
    }
    reports = play(budgeted(Budget(**{name: int(limit[name])}), mode), nodes_of())
    spent = measured(reports, mode)
    took = {
        "bytes": total(spent).bytes,
        "multiply_adds": total(spent).ops,
        "client_bytes": max(costs.bytes for costs in spent.values()),
        "client_multiply_adds": max(costs.client_ops for costs in spent.values()),
    }
    # Not much less either: an exchange, which is all or nothing, is a fifth of a run or less, and
    # where parts are shared the end of a period is kept in reserve.
    assert 0.4 * limit[name] < took[name] <= limit[name]
    assert sum(report.held_back for report in reports) > 0


def test_who_cannot_upload_is_left_out_where_a_round_alone_would_be_paid_for_nothing() -> None:
    options: dict[str, Any] = {"kappa": 0.0, "selection": "all", "local_loss": False}
    [free] = play(budgeted(None, "personal", **options), nodes_of(), [1])
    spent = measured([free], "personal")
    # A round without an upload takes less than 900 bytes, and one with it more than 2,000.
    budget = Budget(client_bytes={client: costs.bytes + 900 for client, costs in spent.items()})
    reports = play(budgeted(budget, "personal", **options), nodes_of())
    assert [len(report.clients) for report in reports] == [CLIENTS] + [0] * (ROUNDS - 1)
    assert [report.held_back for report in reports] == [0] + [CLIENTS] * (ROUNDS - 1)


def test_who_is_passed_over_when_a_pass_is_picked_counts_as_held_back() -> None:
    # A turn without an upload takes 3,761 bytes here, and with one 5,133.
    reports = play(budgeted(Budget(client_bytes={0: 4_800}), "relayed"), nodes_of(), range(1, 5))
    assert uploads(reports) == [(2, 1), (3, 2), (4, 1)]
    # In round 4 client 0 can afford no turn.
    assert [report.held_back for report in reports] == [1, 0, 0, 1]
    reports = play(budgeted(Budget(client_bytes=4_800), "relayed"), nodes_of())
    assert uploads(reports) == []
    assert [report.held_back for report in reports] == [3, 0, 0, 3, 3, 3]


def test_a_client_cannot_spend_the_others_budget_by_telling_of_more_samples_than_it_has() -> None:
    def boast(result: FitRes) -> FitRes:
        return replace(result, num_examples=3_000)

    budget = Budget(multiply_adds=40_000)
    strategy, nodes = budgeted(budget, "personal"), nodes_of()
    nodes[1].spoil = boast
    reports = play(strategy, nodes)
    [refused] = [told for told in reports[0].clients if told.failure]
    assert "num_examples" in refused.failure
    assert "3000 samples, but by batch_sizes the exchange has 11" in refused.failure
    assert total(measured(reports, "personal")).ops <= 40_000
    assert [len(report.good) for report in reports] == [2] * ROUNDS


def test_a_client_that_begins_again_is_paid_for_from_its_first_batch_on() -> None:
    strategy, nodes = budgeted(Budget(bytes=1e9), "random"), nodes_of()
    play(strategy, nodes, [1])
    nodes[1].state = RecordDict()
    reports = play(strategy, nodes, range(2, 5))
    told = [client for report in reports for client in report.clients if client.partition_id == 1]
    # Two batches of 4, 4 and 3 in each round; in round 2 it says that its state is lost.
    assert [client.num_examples for client in told] == [0, 8, 7]
    assert [bool(client.failure) for client in told] == [True, False, False]
    ledger = strategy._turns.ledger
    assert ledger is not None
    assert ledger.spent(1).client_ops == (8 + 7 + 8 + 7) * OWN


def test_a_turn_goes_to_the_next_client_where_an_upload_is_all_that_it_is_for() -> None:
    ledger = budgeted(Budget(bytes=1e9), "SL-basic")._turns.ledger
    assert ledger is not None
    alone, upload = (ledger.needs.need(0, 1, upload=upload).bytes for upload in (False, True))
    assert alone < upload - 1
    reports = play(budgeted(Budget(client_bytes={0: upload - 1}), "SL-basic"), nodes_of())
    turns = [client.partition_id for report in reports for client in report.clients]
    assert turns == [1, 1, 2, 2, 1, 1]
    assert [report.held_back for report in reports] == [1, 0, 0, 0, 1, 0]


def test_nothing_is_kept_for_who_could_not_begin_a_period() -> None:
    poor = {1: 0}
    free = play(budgeted(Budget(client_bytes=poor), "averaged"), nodes_of())
    just = total(measured(free, "averaged")).bytes
    reports = play(budgeted(Budget(bytes=just, client_bytes=poor), "averaged"), nodes_of())
    assert [len(report.clients) for report in reports] == [CLIENTS - 1] * ROUNDS
    assert uploads(reports) == uploads(free) != []
