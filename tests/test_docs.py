"""What the guides show is run here, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from flwr.common import ndarrays_to_parameters
from torch import nn

from simulations.comparison.grid import read_grid
from strategies import AdaSplit, Baseline, FedNova
from zerofl_flwr.model_arrays import get_arrays

_DOCS = Path(__file__).parents[1] / "docs"


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (_DOCS / page).read_text(), flags=re.DOTALL)


def _run(page: str, namespace: dict[str, Any]) -> dict[str, Any]:
    for block in _blocks(page, "python"):
        exec(compile(block, page, "exec"), namespace)
    return namespace


def test_a_plan_is_made_and_held_to_as_the_guide_says() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(100, 5)
    )
    made = _run("planning.md", {"network": network})
    plan, strategy = made["plan"], made["strategy"]
    assert isinstance(strategy, AdaSplit)
    assert plan.costs.total.bytes <= plan.budget.bytes == 5e8
    assert plan.costs.total.ops <= plan.budget.multiply_adds == 2e12
    assert strategy.settings == plan.settings


def test_baselines_are_built_as_the_guide_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2))
    initial = ndarrays_to_parameters(get_arrays(model))
    made = _run("baselines.md", {"model": model, "initial": initial, "rounds": [], "tests": []})
    assert isinstance(made["strategy"], Baseline)
    assert isinstance(made["strategy"].strategy, FedNova)
    assert made["names"] == ["0.weight", "0.bias"]


def test_a_grid_can_be_read_as_the_guide_has_it(tmp_path: Path) -> None:
    grid, base, figure, sweep = _blocks("comparing.md", "toml")
    (tmp_path / "my-grid.toml").write_text(grid)
    (tmp_path / "my-base.toml").write_text(base)
    read = read_grid(tmp_path / "my-grid.toml", tmp_path / "runs")
    assert read.methods == ["AdaSplit", "random picks", "FedAvg"]
    assert len(read.runs) == 9
    assert 'by = "samples-per-client"' in figure
    presets = Path(__file__).parents[1] / "simulations" / "conf"
    (tmp_path / "adasplit-digits.toml").write_text((presets / "adasplit-digits.toml").read_text())
    (tmp_path / "my-sweep.toml").write_text(sweep)
    swept = read_grid(tmp_path / "my-sweep.toml", tmp_path / "runs")
    assert swept.methods[0] == "kappa 0.3, eta 0.2"
    assert len(swept.runs) == 18
