"""What the help says of settings that a method does not take: refused, and without effect."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import typer.main
from click import Group

from simulations.__main__ import app
from simulations.runner import run
from simulations.setting_groups import all_fields
from simulations.settings import RunSettings
from simulations.simulation_settings import ALGORITHMS
from tests.simulations.setting_values import ADASPLIT, BASELINE, OTHERS
from tests.simulations.small_runs import arrays_of, table_of
from tests.simulations.small_split_runs import small_split
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.training import TrainingSettings

VALUES = BASELINE | ADASPLIT | OTHERS
HOMES = {"ZeroFL": "zerofl", "AdaSplit": "adasplit", "Baselines": "baseline"}
"""Panels of one method."""
TRAINING = TrainingSettings.__dataclass_fields__.keys()
NOT_FOR_ADASPLIT = {
    *("masked", "strategy", "server-learning-rate", "server-momentum", "server-tau"),
    *("proximal-mu", "optimizer", "learning-rate", "learning-rate-end", "momentum"),
    *("weight-decay", "local-epochs"),
}


def users_by_help() -> dict[str, set[str]]:
    """Return the methods of each option of ``lean-flwr run``, as its panel and help have them."""
    group = typer.main.get_command(app)
    assert isinstance(group, Group)
    users: dict[str, set[str]] = {}
    for option in group.commands["run"].params:
        text, panel = getattr(option, "help", ""), str(getattr(option, "rich_help_panel", ""))
        also, never = (re.search(rf"{word} for ([a-z ]+)\.$", text) for word in ("Also", "Not"))
        home = HOMES.get(panel.partition(":")[0])
        methods = {home, *(also[1].split(" and ") if also else ())} if home else set(ALGORITHMS)
        users[str(option.name).replace("_", "-")] = methods - set(
            never[1].split(" or ") if never else ()
        )
    return users


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_setting_is_refused_by_the_methods_that_its_help_excludes(algorithm: str) -> None:
    keys = {key for _, key, _ in all_fields()} - {"algorithm"}
    excluded = {key for key in keys if algorithm not in users_by_help()[key]}
    refused = set()
    for key in keys:
        try:
            RunSettings.from_mapping({"algorithm": algorithm, key: VALUES[key]})
        except SettingsError as error:
            if f"{key} has no effect with the algorithm {algorithm}" in str(error):
                refused.add(key)
    assert refused == excluded
    # Of each method there is something that it does not take.
    assert {"zerofl": "kappa", "adasplit": "strategy", "baseline": "masked"}[algorithm] in refused


def test_what_the_help_says_is_not_for_adasplit() -> None:
    users = users_by_help()
    assert {key for key in users if users[key] == {"zerofl", "baseline"}} == (
        NOT_FOR_ADASPLIT - {"masked"} | {"min-replies"}
    )
    assert users["masked"] == {"zerofl"}


# Momentum does not go with Adam.
@pytest.mark.parametrize("left_out", ["optimizer", "momentum"])
@pytest.mark.usefixtures("no_plots")
def test_what_is_not_for_adasplit_has_no_effect_there(left_out: str, tmp_path: Path) -> None:
    """Past the check that refuses it: with other values a run gives the same bits."""
    values = {key.replace("-", "_"): VALUES[key] for key in NOT_FOR_ADASPLIT - {left_out}}
    in_training = {name: value for name, value in values.items() if name in TRAINING}
    in_simulation = {name: value for name, value in values.items() if name not in TRAINING}
    plain = small_split(rounds=2)
    other = replace(
        plain,
        simulation=replace(plain.simulation, **in_simulation),
        training=replace(plain.training, **in_training),
    )
    first, second = run(plain, tmp_path / "plain"), run(other, tmp_path / "other")
    assert arrays_of(first / "model.npz") == arrays_of(second / "model.npz")
    for name in ("rounds", "clients", "tests"):
        one, two = (table_of(folder, name) for folder in (first, second))
        pd.testing.assert_frame_equal(one, two)
