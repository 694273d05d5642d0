"""The figures of AdaSplit's authors, from the network and the sizes of the data alone.

Mixed-NonIID: five clients, 20 rounds of 765 batches of 32; five classes. They count forward
multiply-adds, and four bytes for each activation or gradient that is not zero; here it is four for
each. Their client runs a batch forward once although gradients come back; ours runs it again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from adasplit_flwr import AdaSplitSettings, split_sequential
from simulations.networks import lenet
from strategies.planning import AdaSplitCosts
from strategies.planning.vectors import Spent

TERA, GIGA = 1e12, 1e9
CLIENTS, ROUNDS, BATCH = 5, 20, 32
MIXED_NONIID, MIXED_CIFAR = 765, 338
"""Batches of a client in a round; the second is not told, and follows from the figures."""
SL_BASIC: dict[str, Any] = {
    "kappa": 0.0,
    "selection": "all",
    "mask": "none",
    "local_loss": False,
    "server_gradient": "selected",
    "client_weights": "relayed",
}


@cache
def costs_of(
    batches: int = MIXED_NONIID, cut: str = "block1", classes: int = 5, method: str = "AdaSplit"
) -> AdaSplitCosts:
    return AdaSplitCosts(
        split_sequential(lenet(num_classes=classes), cut),
        AdaSplitSettings(**(SL_BASIC if method == "SL-basic" else {})),
        [batches * BATCH] * CLIENTS,
        sample_shape=(3, 32, 32),
        num_classes=classes,
        batch_size=BATCH,
    )


def adasplit_of(kappa: float = 0.6, eta: float = 0.6, **options: Any) -> Spent:
    costs = costs_of(**options).of(ROUNDS, kappa=kappa, eta=eta)
    assert costs.is_exact
    return costs.total


def sl_basic_of(**options: Any) -> Spent:
    """Let each client have 20 turns of an exchange and a round that brings its gradients."""
    costs = costs_of(method="SL-basic", **options).of(2 * ROUNDS * CLIENTS)
    assert costs.is_exact
    return costs.total


def client_tera(spent: Spent, cut: str = "block1") -> float:
    """Count a batch forward once, whether its gradients come or not."""
    again = costs_of(cut=cut).steps.again.forward
    return (spent.client_forward_ops - spent.returned * again) / TERA


def test_adasplit_of_mixed_noniid() -> None:
    spent = adasplit_of()
    assert spent.trained == 76_500 * BATCH
    assert round(client_tera(spent), 2) == 5.38
    assert round(spent.forward_ops / TERA, 2) == 10.89
    assert round(spent.up.activations / GIGA, 2) == 12.03
    assert spent.down.activations == spent.down.gradients == 0


def test_sl_basic_of_mixed_noniid() -> None:
    spent = sl_basic_of()
    assert spent.trained == spent.learned == spent.returned == 76_500 * BATCH
    assert round(client_tera(spent), 2) == 3.76
    assert round(client_tera(spent) + spent.server_forward_ops / TERA, 2) == 26.68
    assert round((spent.up.activations + spent.down.gradients) / GIGA, 1) == 100.3


@pytest.mark.parametrize(
    ("kappa", "tera"), [(0.3, 15.01), (0.45, 12.95), (0.6, 10.89), (0.75, 8.82), (0.9, 6.76)]
)
def test_sweep_of_kappa(kappa: float, tera: float) -> None:
    assert round(adasplit_of(kappa).forward_ops / TERA, 2) == tera


@pytest.mark.parametrize(
    ("cut", "tera"), [("block1", 5.38), ("block2", 20.45), ("block3", 26.24), ("block4", 27.03)]
)
def test_sweep_of_the_clients_size(cut: str, tera: float) -> None:
    assert round(client_tera(adasplit_of(cut=cut), cut), 2) == tera


def test_mixed_cifar() -> None:
    spent = adasplit_of(batches=MIXED_CIFAR, classes=10)
    assert round(client_tera(spent), 2) == 2.38
    assert round(spent.forward_ops / TERA, 2) == 4.81
    spent = sl_basic_of(batches=MIXED_CIFAR, classes=10)
    assert round(client_tera(spent), 2) == 1.66
    assert round(client_tera(spent) + spent.server_forward_ops / TERA, 2) == 11.79


def test_mixed_cifar_has_no_other_number_of_batches() -> None:
    steps = costs_of(classes=10).steps

    def figures(batches: int) -> tuple[float, float]:
        samples = batches * BATCH * ROUNDS * CLIENTS / TERA
        own, server = steps.own.forward, steps.server.forward
        return round(samples * own, 2), round(samples * (own + 0.24 * server), 2)

    assert [n for n in range(330, 346) if figures(n) == (2.38, 4.81)] == [MIXED_CIFAR]
