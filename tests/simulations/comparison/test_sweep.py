from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.comparison.sweep import settings_text, sweep_methods
from zerofl_flwr.errors import SettingsError


def test_every_combination_is_a_method_with_its_values_as_name() -> None:
    sweep = {"kappa": [0.3, 0.6], "mask": ["soft", "none"]}
    methods = sweep_methods(sweep, {"rounds": 5}, Path("grid.toml"))
    assert methods == [
        {
            "name": f"kappa {kappa}, mask {mask}",
            "settings": {"rounds": 5, "kappa": kappa, "mask": mask},
        }
        for kappa, mask in [(0.3, "soft"), (0.3, "none"), (0.6, "soft"), (0.6, "none")]
    ]


def test_values_are_worded_as_in_a_config_file() -> None:
    values = {"local-loss": True, "learning-rate-end": "", "weight-decay": 1e-05, "slow": None}
    assert settings_text(values) == (
        "local-loss true, learning-rate-end unset, weight-decay 1e-05, slow unset"
    )


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({}, r"[sweep] is empty"),
        ({"seed": [1, 2]}, "seed is no setting of a [sweep]; use the key 'seeds'"),
        ({"rounds": [1, 2]}, "rounds is in [settings] and in [sweep]"),
        ({"kappa": 0.3}, "sweep kappa is 0.3; expected a list of at least one value"),
        ({"kappa": []}, "sweep kappa is []; expected a list"),
        ({"kappa": [0.3, 0.6, 0.3]}, "sweep kappa holds 0.3 twice"),
    ],
)
def test_what_cannot_be_combined_is_refused(sweep: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        sweep_methods(sweep, {"rounds": 5}, Path("grid.toml"))
    assert message in str(caught.value)
    assert str(caught.value).startswith("grid.toml: ")
