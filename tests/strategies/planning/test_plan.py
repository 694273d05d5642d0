"""The choice among candidates of known costs."""

from __future__ import annotations

import pytest

from adasplit_flwr import AdaSplitSettings
from strategies.budget import Budget
from strategies.planning import Candidate, RunCosts
from strategies.planning.plan import choose, overruns
from strategies.planning.vectors import Spent, row_of, spent
from strategies.traffic import NO_BYTES, Breakdown
from zerofl_flwr.errors import SettingsError


def costs(size: int, ops: int, client: int = 0) -> RunCosts:
    total: Spent = spent(row_of(Breakdown(protocol=size), NO_BYTES, server_ops=ops))
    own = spent(row_of(Breakdown(protocol=client), NO_BYTES, client_ops=client))
    return RunCosts(total, (own,), is_exact=True)


def candidate(
    name: str, goals: tuple[float, ...], size: int, ops: int, budget: Budget | None = None
) -> Candidate[AdaSplitSettings]:
    priced = costs(size, ops)
    over = overruns(priced, budget or Budget())
    return Candidate({"cut": name}, AdaSplitSettings(), priced, goals, over)


def chosen(*candidates: Candidate[AdaSplitSettings]) -> object:
    return choose(candidates, Budget()).chosen.choice["cut"]


def test_the_first_goal_counts_most_then_the_second_then_what_is_cheaper() -> None:
    assert chosen(candidate("a", (2, 9), 1, 1), candidate("b", (3, 1), 9, 9)) == "b"
    assert chosen(candidate("a", (3, 1), 1, 1), candidate("b", (3, 2), 9, 9)) == "b"
    assert chosen(candidate("a", (3, 2), 5, 1), candidate("b", (3, 2), 4, 9)) == "b"
    assert chosen(candidate("a", (3, 2), 5, 2), candidate("b", (3, 2), 5, 1)) == "b"
    assert chosen(candidate("a", (3, 2), 5, 1), candidate("b", (3, 2), 5, 1)) == "a"


def test_what_exceeds_a_limit_is_not_chosen_and_says_why() -> None:
    budget = Budget(bytes=10, multiply_adds=10)
    large = candidate("a", (9,), 11, 12, budget)
    plan = choose([large, candidate("b", (1,), 10, 10, budget)], budget)
    assert plan.chosen.name == "cut b"
    assert large.over == ("bytes 11, of 10", "multiply-adds 12, of 10")
    assert plan.slack == {"bytes": 0, "multiply_adds": 0}
    assert [one.name for one in plan.ranked()] == ["cut b"]


def test_limits_of_a_client_are_held_against_its_own_costs() -> None:
    budget = Budget(client_bytes={0: 4}, client_multiply_adds=6)
    assert overruns(costs(9, 9, client=5), budget) == ("bytes of client 0 5, of 4",)
    assert overruns(costs(9, 9, client=4), budget) == ()


def test_the_cheapest_is_what_overruns_a_limit_least() -> None:
    budget = Budget(bytes=10, multiply_adds=1)
    candidates = [candidate("a", (9,), 11, 5, budget), candidate("b", (1,), 30, 3, budget)]
    with pytest.raises(SettingsError, match=r"none of 2 candidates fits .* with cut b, takes 30"):
        choose(candidates, budget)


def test_of_what_overruns_a_limit_of_zero_the_cheapest_has_the_fewest_bytes() -> None:
    budget = Budget(bytes=0, multiply_adds=10)
    candidates = [candidate("a", (9,), 5, 20, budget), candidate("b", (1,), 30, 11, budget)]
    with pytest.raises(SettingsError, match="with cut a, takes 5 bytes"):
        choose(candidates, budget)


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(SettingsError, match="the grid is empty"):
        choose([], Budget())
