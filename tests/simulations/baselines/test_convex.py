"""On parabolas with different optima, curvatures and steps: who finds the optimum, and who not."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.server.strategy import FedAvg, Strategy

from strategies import Baseline, FedNova, Scaffold
from tests.simulations.baselines.quadratics import (
    OPTIMUM,
    PARABOLAS,
    Parabola,
    end_of,
    nodes,
    start,
)


def all_of(kind: Any, clients: int = 3, **options: Any) -> Strategy:
    return Baseline(
        kind(
            initial_parameters=start(),
            min_fit_clients=clients,
            min_available_clients=3,
            fraction_evaluate=0.0,
            fraction_fit=0.0,
            fit_metrics_aggregation_fn=lambda _: {},
            **options,
        )
    )


def kept(client: Parabola, rate: float) -> float:
    """Return how much of the distance to a client's optimum is left after its steps."""
    return float((1 - rate * client.curvature) ** client.steps)


def test_fedavg_ends_where_its_clients_pulls_are_equal_and_not_at_the_optimum() -> None:
    rate = 0.1
    pulls = [1 - kept(client, rate) for client in PARABOLAS]
    assert pulls == pytest.approx([0.1, 0.36, 0.92224])
    fixed = sum(p * c.optimum for p, c in zip(pulls, PARABOLAS, strict=True)) / sum(pulls)
    end = end_of(all_of(FedAvg), nodes(learning_rate=rate), 60)
    assert end == pytest.approx(fixed, abs=1e-12)
    assert end == pytest.approx(1.92448 / 1.38224, abs=1e-12)
    assert end - OPTIMUM > 0.24


def test_scaffold_ends_at_the_optimum() -> None:
    strategy = all_of(Scaffold, num_clients=3)
    end = end_of(strategy, nodes(scaffold=True, learning_rate=0.1), 120)
    assert end == pytest.approx(OPTIMUM, abs=1e-9)
    inner: Any = strategy.strategy  # type: ignore[attr-defined]
    assert inner.control[0] == pytest.approx([0.0], abs=1e-8)


def test_scaffold_ends_at_the_optimum_also_with_some_clients_a_round() -> None:
    strategy = all_of(Scaffold, clients=2, num_clients=3)
    end = end_of(strategy, nodes(scaffold=True, learning_rate=0.1), 200)
    assert end == pytest.approx(OPTIMUM, abs=1e-7)
    # FedAvg never comes to rest, as each round's clients pull elsewhere.
    plain = [end_of(all_of(FedAvg, clients=2), nodes(learning_rate=0.1), n) for n in range(20, 26)]
    assert max(plain) - min(plain) > 0.2


def test_scaffold_steps_through_two_rounds_as_worked_out_by_hand() -> None:
    # Losses w^2 / 2, two steps, and (w - 3)^2, one step; from w = 1 at rate 0.1, with N = 4.
    # 1: 1 -> 0.9 -> 0.81 with c_1 = 0.19 / 0.2; 1 -> 1.4 with c_2 = -0.4 / 0.1; x = 1.105, and
    #    c = 2/4 * mean(0.95, -4) = -0.7625.
    # 2: 1.105 - 0.1 (1.105 - 0.95 - 0.7625) = 1.16575, then 1.220425; c_1 = 1.135375.
    #    1.105 - 0.1 (-3.79 + 4 - 0.7625) = 1.16025; c_2 = -3.79. x is their mean, and
    #    c = -0.7625 + 2/4 * mean(0.185375, 0.21).
    clients = [Parabola(1.0, 0.0, 2), Parabola(2.0, 3.0, 1)]
    for rounds, x, control in ((1, 1.105, -0.7625), (2, 1.1903375, -0.66365625)):
        scaffold = Scaffold(num_clients=4, initial_parameters=start(1.0), fraction_evaluate=0.0)
        members = nodes(clients, scaffold=True, learning_rate=0.1)
        end = end_of(Baseline(scaffold), members, rounds)
        assert end == pytest.approx(x, abs=1e-12)
        assert scaffold.control[0] == pytest.approx([control], abs=1e-12)


def test_fednova_ends_near_the_optimum_and_nearer_with_smaller_steps() -> None:
    # Its clients' pulls, divided by their steps, agree with the gradients but for O(rate).
    rate = 0.01
    pulls = [(1 - kept(client, rate)) / client.steps for client in PARABOLAS]
    fixed = sum(p * c.optimum for p, c in zip(pulls, PARABOLAS, strict=True)) / sum(pulls)
    end = end_of(all_of(FedNova), nodes(learning_rate=rate), 350)
    assert end == pytest.approx(fixed, abs=1e-9)
    assert fixed == pytest.approx(1.105289, abs=1e-6)
    smaller = [(1 - kept(client, rate / 100)) / client.steps for client in PARABOLAS]
    nearer = sum(p * c.optimum for p, c in zip(smaller, PARABOLAS, strict=True)) / sum(smaller)
    assert abs(nearer - OPTIMUM) < abs(fixed - OPTIMUM) / 90
    # FedAvg's pulls stay in the proportion of steps times curvature, however small the rate.
    fedavg = end_of(all_of(FedAvg), nodes(learning_rate=rate), 260)
    assert fedavg == pytest.approx(1.6183194739, abs=1e-9)


def test_fednova_comes_to_the_optimum_as_the_learning_rate_falls_and_fedavg_does_not() -> None:
    def falling(number: int) -> dict[str, Any]:
        return {"learning-rate": 0.05 * 0.98**number}

    # Each rate has a fixed point of its own, for FedNova some 3.8 rates below the optimum. Below a
    # rate of about 0.003 the rate falls faster than the model follows, which therefore stays some
    # 0.012 away.
    options: dict[str, Any] = {"on_fit_config_fn": falling}
    fednova = end_of(all_of(FedNova, **options), nodes(), 230)
    assert fednova == pytest.approx(OPTIMUM, abs=0.015)
    fedavg = end_of(all_of(FedAvg, **options), nodes(), 230)
    assert fedavg == pytest.approx(41 / 25, abs=0.015)  # (-1 + 2 + 40) / (1 + 4 + 20)


def test_fednova_reckons_with_momentum_where_steps_differ() -> None:
    # One client on its own optimum's parabola pulls as FedAvg's would: x' is its own result.
    alone = [Parabola(1.0, 0.0, 5)]
    for momentum in (0.0, 0.9):
        strategy = FedNova(
            momentum=momentum,
            initial_parameters=start(1.0),
            fraction_evaluate=0.0,
            min_fit_clients=1,
            min_available_clients=1,
        )
        members = nodes(alone, learning_rate=0.1, momentum=momentum)
        position, buffer = 1.0, 0.0
        for _ in range(5):
            buffer = momentum * buffer + position
            position -= 0.1 * buffer
        assert end_of(Baseline(strategy), members, 1) == pytest.approx(position, abs=1e-12)
    # Two clients of opposite optima and equal curvature, with 1 and 4 steps: the mean is 0. They
    # end where their pulls are equal: 0.05 of the distance, and of the second what is written out
    # here, which FedNova divides by 1 + 1.5 + 1.75 + 1.875 = 6.125 steps.
    left, buffer = 1.0, 0.0
    for _ in range(4):
        buffer = 0.5 * buffer + left
        left -= 0.05 * buffer
    pulls = {"fedavg": 1 - left, "fednova": (1 - left) / 6.125}
    opposite = [Parabola(1.0, -1.0, 1), Parabola(1.0, 1.0, 4)]
    ends = {}
    kinds: dict[str, Any] = {"fedavg": FedAvg, "fednova": FedNova}
    for name, kind in kinds.items():
        options: dict[str, Any] = {"momentum": 0.5} if name == "fednova" else {}
        wrapped = Baseline(kind(initial_parameters=start(0.0), fraction_evaluate=0.0, **options))
        ends[name] = end_of(wrapped, nodes(opposite, learning_rate=0.05, momentum=0.5), 150)
    fixed = {name: (pull - 0.05) / (pull + 0.05) for name, pull in pulls.items()}
    assert ends == pytest.approx(fixed, abs=1e-9)
    assert abs(ends["fednova"]) < 0.05 < 0.6 < ends["fedavg"]


def test_scaffold_with_one_client_is_fedavg_bit_for_bit() -> None:
    one = [Parabola(4.0, 2.0, 5)]
    options: dict[str, Any] = {
        "initial_parameters": start(),
        "fraction_evaluate": 0.0,
        "min_fit_clients": 1,
        "min_available_clients": 1,
    }
    for rounds in (1, 2, 7):
        plain = end_of(FedAvg(**options), nodes(one, learning_rate=0.03), rounds)
        scaffold = Scaffold(num_clients=1, **options)
        controlled = end_of(scaffold, nodes(one, scaffold=True, learning_rate=0.03), rounds)
        assert controlled == plain
        assert scaffold.control[0] != 0


def test_scaffold_begins_as_fedavg_where_clients_are_equally_large() -> None:
    plain = end_of(all_of(FedAvg), nodes(learning_rate=0.1), 1)
    controlled = end_of(all_of(Scaffold, num_clients=3), nodes(scaffold=True, learning_rate=0.1), 1)
    assert controlled == pytest.approx(plain, abs=1e-15)
