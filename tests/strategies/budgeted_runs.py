"""Runs of AdaSplit's small federation within a budget, and what is measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flwr.server.client_manager import SimpleClientManager
from flwr.server.server import fit_clients

from strategies import AdaSplit, AdaSplitRoundReport
from strategies.budget import Budget
from strategies.exchange_costs import Costs
from tests.strategies.adasplit_federation import (
    NOTHING,
    SplitNode,
    adasplit,
    samples_of,
    split_nodes,
)
from tests.strategies.federation import managed

CLIENTS, ROUNDS = 3, 6
EPOCH = (4, 4, 3)
# Client 6-5, head 5-3, server 5-4-3; two multiply-adds more for what needs two gradients.
OWN, AGAIN = 2 * 30 + 3 * 15, 2 * 30
MODES: dict[str, dict[str, Any]] = {
    "personal": {"kappa": 0.34, "eta": 0.6},
    "random": {"selection": "random", "eta": 0.4, "iterations_per_round": 2},
    "gradients": {"server_gradient": "selected", "iterations_per_round": 2},
    "averaged": {"kappa": 0.34, "client_weights": "averaged", "share_every": 2},
    "relayed": {"client_weights": "relayed", "iterations_per_round": 1},
    "SplitFed": {
        "client_weights": "averaged",
        "share_every": 2,
        "server_gradient": "selected",
        "local_loss": False,
        "mask": "none",
        "selection": "all",
        "iterations_per_round": 1,
    },
    "SL-basic": {
        "client_weights": "relayed",
        "server_gradient": "selected",
        "local_loss": False,
        "mask": "none",
        "selection": "all",
    },
}


def nodes_of(count: int = CLIENTS) -> list[SplitNode]:
    nodes = split_nodes(count)
    for node in nodes:
        node.data = samples_of(node.partition, sum(EPOCH))
    return nodes


def budgeted(budget: Budget | None, mode: str, rounds: int = ROUNDS, **options: Any) -> AdaSplit:
    sizes = None if budget is None else dict.fromkeys(range(CLIENTS), EPOCH)
    return adasplit(
        rounds=rounds, seed=5, budget=budget, batch_sizes=sizes, **{**MODES[mode], **options}
    )


def play_round(
    strategy: AdaSplit, manager: SimpleClientManager, server_round: int
) -> AdaSplitRoundReport:
    """Play one round as Flower's server does: one in which nobody is asked has no aggregate."""
    reports: list[AdaSplitRoundReport] = []
    strategy.on_round = reports.append
    pairs = strategy.configure_fit(server_round, NOTHING, manager)
    if pairs:
        results, failures = fit_clients(pairs, max_workers=1, timeout=None, group_id=server_round)
        strategy.aggregate_fit(server_round, results, failures)
    [report] = reports
    return report


def play(
    strategy: AdaSplit, nodes: Sequence[SplitNode], rounds: Iterable[int] = range(1, ROUNDS + 1)
) -> list[AdaSplitRoundReport]:
    manager = managed(nodes)
    return [play_round(strategy, manager, server_round) for server_round in rounds]


def measured(reports: Sequence[AdaSplitRoundReport], mode: str) -> dict[int, Costs]:
    """Add up what each client, and the server for it, took, by the reports and by hand."""
    options = MODES[mode]
    server = 3 * 12 + (3 if options.get("server_gradient") else 2) * 20
    own = OWN if options.get("local_loss", True) else 30
    spent: dict[int, Costs] = {}
    for report in reports:
        for client in report.clients:
            assert client.partition_id is not None
            took = Costs(
                client.downlink_bytes + client.uplink_bytes,
                client.num_examples * own + client.gradient_samples * AGAIN,
                client.server_samples * server,
            )
            spent[client.partition_id] = spent.get(client.partition_id, Costs()) + took
    return spent


def uploads(reports: Sequence[AdaSplitRoundReport]) -> list[tuple[int, int | None]]:
    """Return (round, client) of each upload."""
    return [
        (report.server_round, client.partition_id)
        for report in reports
        for client in report.clients
        if client.picked
    ]


def total(spent: dict[int, Costs]) -> Costs:
    """Add up what clients have spent."""
    return sum(spent.values(), Costs())
