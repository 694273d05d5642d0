"""Grids of small runs, for tests of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from tests.simulations.changed_settings import kebab
from tests.simulations.small_runs import SMALL

METHODS: list[dict[str, Any]] = [
    {"name": "Dense, FedAvg", "seeds": [3, 4], "settings": {"sparsity": 0.0, "mask-ratio": 0.0}},
    {"name": "r = .2 [ours]", "seeds": [3]},
]
TINY = SMALL | {"num-clients": 4, "clients-per-round": 2, "rounds": 1}


def write_grid(folder: Path, grid: dict[str, Any] | None = None, **base: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.toml").write_text(tomli_w.dumps(TINY | kebab(base)))
    path = folder / "grid.toml"
    path.write_text(
        tomli_w.dumps({"base": "base.toml", "method": METHODS} if grid is None else grid)
    )
    return path
