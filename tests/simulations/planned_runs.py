"""The AdaSplit run whose costs and plans are tested."""

from __future__ import annotations

from typing import Any

# A tenth of a client's samples is for its tests: it trains on 45.
PLANNED_SPLIT: dict[str, Any] = {
    "algorithm": "adasplit",
    "num-clients": 4,
    "samples-per-client": 50,
    "clients-per-round": 4,
    "rounds": 10,
    "batch-size": 16,
    "kappa": 0.5,
    "eta": 0.5,
    "cut": "1",
    "backend": "in-process",
}
