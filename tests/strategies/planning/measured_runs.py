"""Real AdaSplit runs on a network whose activations and gradients are never zero, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from adasplit_flwr import AdaSplitSettings, SplitModel, split_sequential
from strategies.planning import AdaSplitCosts
from strategies.reports import ClientReport
from strategies.traffic import CATEGORIES
from tests.strategies.adasplit_federation import (
    BATCH,
    CLASSES,
    FEATURES,
    SplitNode,
    adasplit,
    run_rounds,
    samples_of,
)

WIDTHS = (FEATURES, 5, 4, CLASSES)
PART_OPTIONS = ("fraction_fit", "min_fit_clients")


def network() -> nn.Sequential:
    """Build linear layers with tanh between them: children 0 to 4."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for inputs, outputs in pairwise(WIDTHS):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def cut_at(cut: int) -> SplitModel:
    return split_sequential(network(), cut, projection_dim=3)


def small_cut() -> SplitModel:
    """Cut behind the first layer, with a small head."""
    whole = cut_at(1)
    return SplitModel(whole.client, nn.Linear(WIDTHS[1], 3), whole.server)


@dataclass(frozen=True)
class Measured:
    """What the meters of a run say."""

    phases: str
    down: dict[str, int]
    up: dict[str, int]
    trained: int
    returned: int
    learned: int
    clients: dict[int, int]

    @property
    def bytes(self) -> int:
        return sum(self.clients.values())


def measured(
    samples: Sequence[int], rounds: int, *, split: Any = small_cut, **options: Any
) -> Measured:
    """Run real clients of so many samples behind a real strategy."""
    nodes = [
        SplitNode(client, split=split, data=samples_of(client, own))
        for client, own in enumerate(samples)
    ]
    strategy = adasplit(split(), rounds=rounds, threads=1, **options)
    played = run_rounds(strategy, nodes, range(1, rounds + 1))
    reports: list[Any] = [client for round_ in played for client in round_.report.clients]
    assert not any(report.failure for report in reports)
    spent = dict.fromkeys(range(len(samples)), 0)
    for report in reports:
        spent[report.partition_id] += report.downlink_bytes + report.uplink_bytes
    return Measured(
        "".join(round_.report.phase[0] for round_ in played),
        _by_category(reports, "down"),
        _by_category(reports, "up"),
        sum(report.num_examples for report in reports),
        sum(report.gradient_samples for report in reports),
        sum(report.server_samples for report in reports),
        spent,
    )


def foretold(samples: Sequence[int], **options: Any) -> AdaSplitCosts:
    """Build the costs of the same runs."""
    drawn = None
    if "fraction_fit" in options:
        drawn = max(1, int(options["fraction_fit"] * len(samples)))
    given = {name: value for name, value in options.items() if name not in PART_OPTIONS}
    return AdaSplitCosts(
        small_cut(),
        AdaSplitSettings(**{"kappa": 0.0, **given}),
        samples,
        sample_shape=(FEATURES,),
        num_classes=CLASSES,
        batch_size=BATCH,
        clients_per_round=drawn,
    )


def _by_category(reports: Sequence[ClientReport], way: str) -> dict[str, int]:
    return {
        name: sum(getattr(getattr(report, way), name) for report in reports)
        for name in (*CATEGORIES, "counted")
    }
