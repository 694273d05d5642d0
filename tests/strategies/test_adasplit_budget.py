"""A run never takes more than its budget, and with enough of one it is as without."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
from flwr.app import RecordDict
from flwr.common import FitRes, Parameters
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import AdaSplitRoundReport
from strategies.budget import Budget
from tests.strategies.adasplit_federation import adasplit, frozen
from tests.strategies.budgeted_runs import (
    CLIENTS,
    MODES,
    OWN,
    ROUNDS,
    budgeted,
    measured,
    nodes_of,
    play,
    play_round,
    total,
    uploads,
)
from tests.strategies.federation import managed
from zerofl_flwr.errors import RoundFailedError, SettingsError

Frozen = dict[str, tuple[str, tuple[int, ...], bytes]]


@cache
def unlimited(mode: str) -> tuple[list[AdaSplitRoundReport], Frozen]:
    strategy = budgeted(None, mode)
    reports = play(strategy, nodes_of())
    return reports, frozen(strategy.state_arrays())


def without_budget(state: Frozen) -> Frozen:
    return {name: value for name, value in state.items() if not name.startswith("budget/")}


def outline(reports: list[AdaSplitRoundReport]) -> list[tuple[object, ...]]:
    return [
        (r.server_round, r.phase, [(c.partition_id, c.picked, c.uplink_bytes) for c in r.clients])
        for r in reports
    ]


@settings(max_examples=40)
@given(
    mode=st.sampled_from(sorted(MODES)),
    together=st.tuples(st.floats(0, 1.2), st.floats(0, 1.2)),
    each=st.lists(st.tuples(st.floats(0, 1.2), st.floats(0, 1.2)), min_size=3, max_size=3),
    limits=st.sets(st.sampled_from(["bytes", "ops", "own bytes", "own ops"]), min_size=1),
)
def test_no_budget_is_exceeded(
    mode: str,
    together: tuple[float, float],
    each: list[tuple[float, float]],
    limits: set[str],
) -> None:
    free = measured(unlimited(mode)[0], mode)
    budget = Budget(
        bytes=int(together[0] * total(free).bytes) if "bytes" in limits else None,
        multiply_adds=int(together[1] * total(free).ops) if "ops" in limits else None,
        client_bytes={i: int(each[i][0] * free[i].bytes) for i in free}
        if "own bytes" in limits
        else None,
        client_multiply_adds={i: int(each[i][1] * free[i].client_ops) for i in free}
        if "own ops" in limits
        else None,
    )
    strategy = budgeted(budget, mode)
    reports = play(strategy, nodes_of())
    spent = measured(reports, mode)
    assert total(spent).bytes <= (math.inf if budget.bytes is None else budget.bytes)
    assert total(spent).ops <= (math.inf if budget.multiply_adds is None else budget.multiply_adds)
    for client, costs in spent.items():
        assert costs.bytes <= budget.bytes_of(client)
        assert costs.client_ops <= budget.multiply_adds_of(client)
    ledger = strategy._turns.ledger
    assert ledger is not None
    assert {client: ledger.spent(client) for client in spent} == spent
    assert len(reports) == ROUNDS


@pytest.mark.parametrize("mode", MODES)
def test_with_just_what_it_takes_a_run_is_as_without_a_budget(mode: str) -> None:
    reports, state = unlimited(mode)
    spent = measured(reports, mode)
    budget = Budget(
        bytes=total(spent).bytes,
        multiply_adds=total(spent).ops,
        client_bytes={client: costs.bytes for client, costs in spent.items()},
        client_multiply_adds={client: costs.client_ops for client, costs in spent.items()},
    )
    strategy = budgeted(budget, mode)
    again = play(strategy, nodes_of())
    assert outline(again) == outline(reports)
    assert [report.held_back for report in again] == [0] * ROUNDS
    assert without_budget(frozen(strategy.state_arrays())) == state


@pytest.mark.parametrize("mode", ["personal", "random", "averaged"])
def test_a_byte_less_holds_back_the_last_upload(mode: str) -> None:
    reports, _ = unlimited(mode)
    again = play(budgeted(Budget(bytes=total(measured(reports, mode)).bytes - 1), mode), nodes_of())
    assert outline(again[:-1]) == outline(reports[:-1])
    assert len(again[-1].clients) == CLIENTS
    assert sum(client.picked for client in again[-1].clients) == (
        sum(client.picked for client in reports[-1].clients) - 1
    )
    assert again[-1].held_back > 0


@settings(max_examples=25)
@given(
    mode=st.sampled_from(sorted(MODES)),
    share=st.floats(0.2, 1.1),
    faults=st.dictionaries(
        st.tuples(st.integers(1, ROUNDS), st.integers(0, CLIENTS - 1)),
        st.sampled_from(["dies", "is refused", "forgets"]),
        max_size=5,
    ),
)
def test_no_budget_is_exceeded_where_clients_fail(
    mode: str, share: float, faults: dict[tuple[int, int], str]
) -> None:
    free = measured(unlimited(mode)[0], mode)
    budget = Budget(
        bytes=int(share * total(free).bytes),
        multiply_adds=int(share * total(free).ops),
        client_bytes=int(share * max(costs.bytes for costs in free.values())),
        client_multiply_adds=int(share * max(costs.client_ops for costs in free.values())),
    )
    strategy, nodes = budgeted(budget, mode), nodes_of()
    ledger, manager = strategy._turns.ledger, managed(nodes)
    assert ledger is not None
    reports = []
    for server_round in range(1, ROUNDS + 1):
        for node in nodes:
            fault = faults.get((server_round, node.partition))
            node.spoil = {"dies": die, "is refused": of_another_round}.get(fault or "")
            if fault == "forgets":
                node.state = RecordDict()
        try:
            reports.append(play_round(strategy, manager, server_round))
        except RoundFailedError:
            break  # nobody delivered
    spent = measured(reports, mode)
    assert total(spent).bytes <= ledger.total.bytes <= share * total(free).bytes
    assert total(spent).ops <= ledger.total.ops <= share * total(free).ops
    for client, costs in spent.items():
        assert costs.bytes == ledger.spent(client).bytes <= budget.bytes_of(client)
        assert costs.client_ops <= ledger.spent(client).client_ops
        assert ledger.spent(client).client_ops <= budget.multiply_adds_of(client)


def die(result: FitRes) -> FitRes:
    raise OSError("unplugged")


def of_another_round(result: FitRes) -> FitRes:
    return replace(result, metrics={**result.metrics, "round": 99})


def test_a_refused_reply_is_paid_for_and_overruns_by_its_own_size_at_most() -> None:
    def huge(result: FitRes) -> FitRes:
        return replace(result, parameters=Parameters([bytes(10_000)], "numpy.ndarray"))

    budget = Budget(client_bytes=9_000)
    strategy, nodes = budgeted(budget, "personal", kappa=0.0), nodes_of()
    nodes[1].spoil = huge
    reports = play(strategy, nodes)
    spent = measured(reports, "personal")
    assert 10_000 < spent[1].bytes < 9_000 + 10_000
    assert [report.server_round for report in reports if asked(report, 1)] == [1]
    # The others come near their limit of 9,000: one more exchange takes about 2,000.
    assert all(6_000 < spent[client].bytes <= 9_000 for client in (0, 2))
    ledger = strategy._turns.ledger
    assert ledger is not None
    # Its own work is charged although nothing came of it: 11 samples.
    assert (spent[1].client_ops, ledger.spent(1).client_ops) == (0, 11 * OWN)


def asked(report: AdaSplitRoundReport, client: int) -> bool:
    return client in [told.partition_id for told in report.clients]


def test_training_goes_on_when_nobody_can_afford_an_upload() -> None:
    # In round 2 nobody uploads or is sent weights: what is left after round 3 is enough for that.
    free, _ = unlimited("personal")
    by_round = [total(measured([report], "personal")).bytes for report in free]
    budget = Budget(bytes=sum(by_round[:3]) + by_round[1])
    reports = play(budgeted(budget, "personal"), nodes_of())
    assert [len(report.clients) for report in reports] == [CLIENTS] * 4 + [0, 0]
    assert uploads(reports) == [pair for pair in uploads(free) if pair[0] == 3]
    assert [report.held_back for report in reports] == [0, 0, 0, 3, 3, 3]


def test_rounds_in_which_nobody_can_take_part_are_empty() -> None:
    nodes = nodes_of()
    reports = play(budgeted(Budget(bytes=0), "averaged"), nodes)
    assert [len(report.clients) for report in reports] == [0] * ROUNDS
    assert [report.phase for report in reports] == ["local"] * 2 + ["global"] * 4
    assert [report.metrics()["held_back"] for report in reports] == [CLIENTS] * ROUNDS
    assert [len(node.state) for node in nodes] == [0] * CLIENTS


def test_a_poor_client_does_not_keep_the_others_from_anything() -> None:
    free, _ = unlimited("personal")
    reports = play(budgeted(Budget(client_multiply_adds={1: 2 * 11 * OWN}), "personal"), nodes_of())
    assert [report.server_round for report in reports if asked(report, 1)] == [1, 2]
    assert [sum(c.picked for c in report.clients) for report in reports] == [0, 0, 2, 2, 2, 2]
    assert [sum(c.picked for c in report.clients) for report in free] == [0, 0, 2, 2, 2, 2]
    assert [report.held_back for report in reports] == [0, 0, 1, 1, 1, 1]


def test_clients_that_cannot_upload_are_not_asked_where_nothing_else_trains_them() -> None:
    spent = measured(unlimited("SplitFed")[0], "SplitFed")
    each = total(spent).bytes // 2
    reports = play(budgeted(Budget(bytes=each), "SplitFed"), nodes_of())
    for report in reports:
        if report.phase != "finish":
            assert all(client.picked or client.gradient_samples for client in report.clients)
    assert sum(len(report.clients) for report in reports) > CLIENTS
    assert reports[-1].held_back == CLIENTS


@pytest.mark.parametrize("mode", ["gradients", "averaged", "relayed", "SL-basic"])
def test_a_resumed_run_spends_as_the_unbroken_one(mode: str) -> None:
    spent = measured(unlimited(mode)[0], mode)
    budget = Budget(
        bytes=int(0.8 * total(spent).bytes),
        client_multiply_adds=int(0.9 * max(costs.client_ops for costs in spent.values())),
    )
    whole, first, second = (budgeted(budget, mode) for _ in range(3))
    reports = play(whole, nodes_of())
    nodes = nodes_of()
    before = play(first, nodes, range(1, 4))
    second.load_state_arrays(first.state_arrays())
    after = play(second, nodes, range(4, ROUNDS + 1))
    assert outline([*before, *after]) == outline(reports)
    assert frozen(second.state_arrays()) == frozen(whole.state_arrays())
    assert sum(report.held_back for report in reports) > 0


def test_a_state_without_books_is_none_of_a_run_with_a_budget() -> None:
    strategy = budgeted(None, "personal")
    play(strategy, nodes_of(), [1])
    state = strategy.state_arrays()
    with pytest.raises(SettingsError, match="cannot be given one when it is resumed"):
        budgeted(Budget(bytes=1), "personal").load_state_arrays(state)


def test_wrong_budgets_fail_before_anybody_trains() -> None:
    sizes = {0: (4,), 1: (4,)}
    with pytest.raises(SettingsError, match="give both or none"):
        adasplit(budget=Budget(bytes=1))
    with pytest.raises(SettingsError, match="give both or none"):
        adasplit(batch_sizes=sizes)
    with pytest.raises(SettingsError, match="client_bytes names client 7, but the clients are 0"):
        adasplit(budget=Budget(client_bytes={7: 1}), batch_sizes=sizes)
    for wrong in ((), (4, 0), (4.0,)):
        with pytest.raises(SettingsError, match="batch_sizes of client 1"):
            adasplit(budget=Budget(bytes=1), batch_sizes={**sizes, 1: wrong})
    nodes = nodes_of()
    strategy = adasplit(budget=Budget(bytes=1e9), batch_sizes=sizes)
    with pytest.raises(SettingsError, match="batch_sizes does not name client 2"):
        play(strategy, nodes, [1])
    assert [len(node.state) for node in nodes] == [0] * CLIENTS
