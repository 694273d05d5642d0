"""What whole AdaSplit runs are foretold to cost, against real ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr import AdaSplitSettings
from adasplit_flwr.batches import epoch_sizes
from strategies.budget import Budget
from strategies.planning import AdaSplitCosts, RunCosts
from strategies.traffic import CATEGORIES
from tests.strategies.adasplit_federation import BATCH, CLASSES, FEATURES, tiny_split
from tests.strategies.planning.measured_runs import foretold, measured, small_cut
from zerofl_flwr.errors import SettingsError

ROUNDS, EQUAL, UNEQUAL = 11, (12, 12, 12), (12, 7, 20)
GRADIENTS: dict[str, Any] = {"server_gradient": "selected"}
UNTRAINED: dict[str, Any] = {"local_loss": False, "mask": "none", "selection": "all"}
EXACT: dict[str, tuple[dict[str, Any], str]] = {
    "all upload": ({"eta": 1.0}, "g" * 11),
    "a local phase": ({"kappa": 0.5, "eta": 0.4}, "l" * 5 + "g" * 6),
    "less than an epoch": ({"iterations_per_round": 2}, "g" * 11),
    "more than an epoch": ({"iterations_per_round": 4, "kappa": 0.3}, "l" * 3 + "g" * 8),
    "gradients": ({**GRADIENTS, "eta": 0.4, "kappa": 0.3}, "l" * 3 + "g" * 8),
    "float16": ({"precision": "float16"}, "g" * 11),
    "averaged": ({"client_weights": "averaged", "share_every": 2}, "g" * 11),
    "averaged, with gradients": (
        {"client_weights": "averaged", "share_every": 2, **GRADIENTS},
        "ggfggfggfgf",
    ),
    "SplitFed from a local phase on": (
        {"client_weights": "averaged", "kappa": 0.5, **GRADIENTS},
        "lllllgfgfgf",
    ),
    "SplitFed": (
        {
            "client_weights": "averaged",
            "share_every": 2,
            "iterations_per_round": 1,
            **UNTRAINED,
            **GRADIENTS,
        },
        "ggfggfggfgf",
    ),
    "relayed": (
        {"client_weights": "relayed", "selection": "all", "share_every": 2, "kappa": 0.3},
        "l" * 3 + "g" * 8,
    ),
    "SL-basic": (
        {
            "client_weights": "relayed",
            "share_every": 2,
            "iterations_per_round": 1,
            **UNTRAINED,
            **GRADIENTS,
        },
        "ggfggfggfgf",
    ),
    "only masks, client frozen": ({"local_loss": False}, "g" * 11),
}
BOUNDED: dict[str, dict[str, Any]] = {
    "picks": {"eta": 0.4},
    "picks, with gradients": {"eta": 0.4, "iterations_per_round": 2, **GRADIENTS},
    "averaged": {"client_weights": "averaged", "share_every": 2, "eta": 0.4, **GRADIENTS},
    "draws": {"fraction_fit": 0.67},
    "draws of averaged parts": {
        "fraction_fit": 0.67,
        "client_weights": "averaged",
        "share_every": 2,
        **GRADIENTS,
    },
    "draws, with gradients": {"fraction_fit": 0.34, "iterations_per_round": 2, **GRADIENTS},
    "relayed": {"client_weights": "relayed", "eta": 0.4, "share_every": 2, "kappa": 0.3},
    "relayed, with gradients": {
        "client_weights": "relayed",
        "eta": 0.4,
        "share_every": 2,
        "kappa": 0.3,
        **GRADIENTS,
    },
}
# Client 6-5 and head 5-3; server 5-4-3, behind a tanh. A step takes a layer three times, or twice
# where no gradient of its input is needed.
OWN, AGAIN = 2 * 30 + 3 * 15, 2 * 30


def by_category(costs: RunCosts, way: str) -> dict[str, int]:
    told = getattr(costs.total, way)
    return {name: getattr(told, name) for name in (*CATEGORIES, "counted")}


@pytest.mark.parametrize("mode", EXACT)
def test_dense_runs_of_equal_clients_cost_what_was_foretold(mode: str) -> None:
    options, phases = EXACT[mode]
    run, costs = measured(EQUAL, ROUNDS, **options), foretold(EQUAL, **options).of(ROUNDS)
    assert run.phases == phases
    assert costs.is_exact
    assert by_category(costs, "down") == run.down
    assert by_category(costs, "up") == run.up
    total = costs.total
    assert (total.trained, total.returned, total.learned) == (
        run.trained,
        run.returned,
        run.learned,
    )
    assert (costs.total.bytes, costs.least_learned) == (run.bytes, run.learned)


@pytest.mark.parametrize("mode", ["all upload", "SL-basic", "SplitFed"])
def test_runs_of_unequal_clients_are_exact_where_all_upload(mode: str) -> None:
    options, _ = EXACT[mode]
    run, costs = measured(UNEQUAL, ROUNDS, **options), foretold(UNEQUAL, **options).of(ROUNDS)
    assert costs.is_exact
    assert (by_category(costs, "down"), by_category(costs, "up")) == (run.down, run.up)
    assert [own.bytes for own in costs.clients] == list(run.clients.values())


@pytest.mark.parametrize("mode", BOUNDED)
def test_runs_in_which_it_matters_who_is_picked_are_bounded(mode: str) -> None:
    options = BOUNDED[mode]
    run, costs = measured(UNEQUAL, ROUNDS, **options), foretold(UNEQUAL, **options).of(ROUNDS)
    assert not costs.is_exact
    total = costs.total
    assert total.bytes >= run.bytes
    for way, spent in (("down", run.down), ("up", run.up)):
        assert all(most >= spent[name] for name, most in by_category(costs, way).items())
    assert total.trained >= run.trained
    assert total.returned >= run.returned
    assert total.learned >= run.learned >= costs.least_learned
    assert all(costs.clients[client].bytes >= spent for client, spent in run.clients.items())


@pytest.mark.parametrize("mode", ["a local phase", "gradients"])
def test_a_budget_of_just_the_foretold_costs_is_enough(mode: str) -> None:
    options, _ = EXACT[mode]
    total = foretold(EQUAL, **options).of(ROUNDS).total
    sizes = {client: epoch_sizes(own, BATCH) for client, own in enumerate(EQUAL)}
    budget = Budget(bytes=total.bytes, multiply_adds=total.ops)
    run = measured(EQUAL, ROUNDS, budget=budget, batch_sizes=sizes, **options)
    assert (run.bytes, run.learned) == (total.bytes, total.learned)


def test_activations_with_zeros_cost_less_than_was_foretold() -> None:
    run = measured((200, 200), 3, split=tiny_split)  # ReLU at the cut
    costs = AdaSplitCosts(
        tiny_split(),
        AdaSplitSettings(kappa=0.0),
        (200, 200),
        sample_shape=(FEATURES,),
        num_classes=CLASSES,
        batch_size=4,
    ).of(3)
    assert run.up["indices"] > 0
    assert run.bytes < costs.total.bytes


def test_multiply_adds_are_samples_times_counts_by_hand() -> None:
    options, _ = EXACT["gradients"]
    total = foretold(EQUAL, **options).of(ROUNDS).total
    # Three clients take 12 samples in 11 rounds; one uploads in eight, and has gradients but last.
    assert (total.trained, total.learned, total.returned) == (396, 96, 84)
    assert total.uploads == 8
    assert total.client_forward_ops == 396 * 45 + 84 * 30
    assert total.client_ops == 396 * OWN + 84 * AGAIN
    assert total.server_forward_ops == 96 * 32
    assert total.server_ops == 96 * 3 * 32  # its input's gradient goes back


def test_steps_are_counted_at_the_least() -> None:
    # Batches of four: of 12 samples three, of 7 two (4, 3), of 20 five; in each of 11 rounds.
    assert foretold(EQUAL).of(ROUNDS).least_steps == 11 * 3 * 3
    assert foretold(UNEQUAL).of(ROUNDS).least_steps == 11 * (3 + 2 + 5)
    # Of three clients two are drawn: those with the fewest batches at the least.
    assert foretold(UNEQUAL, fraction_fit=0.67).of(ROUNDS).least_steps == 11 * (3 + 2)


def test_a_pass_that_is_cut_short_promises_only_the_picks_that_are_sure() -> None:
    costs = foretold((12, 12, 12, 12), client_weights="relayed", eta=0.5)
    # Two of each four turns upload. The fifth turn begins a pass: it may upload, or none yet.
    assert (costs.of(4).total.learned, costs.of(4).least_learned) == (24, 24)
    assert (costs.of(5).total.learned, costs.of(5).least_learned) == (36, 24)
    # Of three turns out of four one at the least is among the two.
    assert (costs.of(7).total.learned, costs.of(7).least_learned) == (48, 36)
    assert [costs.of(rounds).is_exact for rounds in (4, 5)] == [True, False]


def test_a_client_that_is_drawn_every_time_costs_what_it_does_where_all_train() -> None:
    drawn, of_all = (
        foretold(EQUAL, eta=1.0, **some).of(4) for some in ({"fraction_fit": 0.67}, {})
    )
    assert [own.bytes for own in drawn.clients] == [own.bytes for own in of_all.clients]
    assert drawn.clients[0].down.weights == 4 * (30 + 5 + 15 + 3)


def test_where_turns_depend_on_the_picks_nothing_is_promised() -> None:
    costs = foretold(EQUAL, client_weights="relayed", eta=0.4, **GRADIENTS).of(ROUNDS)
    assert (costs.least_learned, costs.least_steps, costs.is_exact) == (0, 0, False)


def test_other_shares_than_the_settings_can_be_asked_for() -> None:
    costs = foretold(EQUAL, kappa=0.3, eta=0.4)
    assert costs.of(10, kappa=0.5, eta=1.0) == foretold(EQUAL, kappa=0.5, eta=1.0).of(10)


Counts = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    samples=Counts,
    rounds=st.integers(2, 40),
    iterations=st.none() | st.integers(1, 5),
    mode=st.sampled_from(["personal", "averaged", "relayed"]),
    gradient=st.sampled_from(["none", "selected"]),
    kappas=st.tuples(st.integers(0, 19), st.integers(0, 19)),
)
def test_longer_local_phases_never_cost_more_and_more_rounds_never_less(
    samples: list[int],
    rounds: int,
    iterations: int | None,
    mode: str,
    gradient: str,
    kappas: tuple[int, int],
) -> None:
    costs = AdaSplitCosts(
        small_cut(),
        AdaSplitSettings(
            client_weights=mode, server_gradient=gradient, iterations_per_round=iterations
        ),
        samples,
        sample_shape=(FEATURES,),
        num_classes=CLASSES,
        batch_size=8,
    )
    low, high = sorted(kappas)
    few, many = (costs.of(rounds, kappa=kappa / 20).total for kappa in (high, low))
    if mode == "personal" or gradient == "none":  # else some rounds have no exchange
        assert few.learned <= many.learned
        assert few.bytes <= many.bytes
        assert few.ops <= many.ops
    longer, shorter = (costs.of(number, kappa=0.0).total for number in (rounds + 1, rounds))
    assert longer.bytes >= shorter.bytes
    assert longer.ops >= shorter.ops


@pytest.mark.parametrize(
    ("samples", "options", "reason"),
    [
        ((), {}, "there are no clients"),
        ((4, 0), {}, "client 1 has 0 samples"),
        ((4, 2.5), {}, "client 1 has 2.5 samples"),
        ((4, 4), {"clients_per_round": 3}, "clients_per_round is 3; it must be from 1 to 2"),
        ((9, 3), {"full_batches": True}, "client 1: .*3 samples, which do not fill"),
    ],
)
def test_clients_that_cannot_train_are_refused(
    samples: tuple[Any, ...], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        AdaSplitCosts(
            small_cut(),
            AdaSplitSettings(),
            samples,
            sample_shape=(FEATURES,),
            num_classes=CLASSES,
            batch_size=4,
            **options,
        )


def test_fewer_rounds_than_a_period_needs_are_refused() -> None:
    costs = foretold(EQUAL, client_weights="averaged", share_every=4, **GRADIENTS)
    assert costs.of(5).total.returned > 0
    with pytest.raises(SettingsError, match="it must be at least 5"):
        costs.of(4)
