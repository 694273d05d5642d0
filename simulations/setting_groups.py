"""Which settings there are: groups of dataclass fields, read by the command line and run-config."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any

from adasplit_flwr.settings import AdaSplitSettings
from simulations.baseline_settings import BaselineSettings
from simulations.budget_settings import BudgetSettings
from simulations.data_settings import DataSettings
from simulations.simulation_settings import SimulationSettings
from simulations.split_settings import SplitSettings
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.settings import ZeroFLSettings
from zerofl_flwr.training import TrainingSettings

PAPER = "paper"
"""Key that turns what is not given to the paper's settings instead of the study's; for zerofl."""

UNSET = "unset"
STUDY_DEFAULTS = {
    "sparsity-schedule": "cubic",
    "sparsity-start": "0.3",
    "sparsity-rounds": "60 % of the rounds",
    "aggregation": "senders",
}
"""Settings whose default depends on others: see `recommended_settings`; an empty text is unset."""

GROUPS: dict[str, Any] = {
    "simulation": SimulationSettings,
    "data": DataSettings,
    "training": TrainingSettings,
    "zerofl": ZeroFLSettings,
    "split": SplitSettings,
    "adasplit": AdaSplitSettings,
    "budget": BudgetSettings,
    "baseline": BaselineSettings,
}
_GROUPS_OF = {
    "zerofl": ("simulation", "data", "training", "zerofl"),
    "adasplit": ("simulation", "data", "training", "split", "adasplit", "budget"),
    "baseline": ("simulation", "data", "training", "baseline"),
}
_UNUSED = {
    "zerofl": frozenset[str](),
    "baseline": frozenset({"masked"}),
    "adasplit": frozenset(
        {
            *("masked", "strategy", "server-learning-rate", "server-momentum", "server-tau"),
            *("proximal-mu", "optimizer", "learning-rate", "learning-rate-end", "momentum"),
            *("weight-decay", "local-epochs"),
        }
    ),
}
"""Settings of shared groups that a method has no use for: AdaSplit wraps no strategy, and its
clients train with Adam for as many batches as its own settings say."""


def all_fields() -> Iterator[tuple[str, str, Field[Any]]]:
    """Yield (group, kebab-case key, dataclass field) of every setting of any method.

    A key that two methods share comes once.
    """
    seen: set[str] = set()
    for group, owner in GROUPS.items():
        for setting in fields(owner):
            key = kebab(setting.name)
            if key not in seen:
                seen.add(key)
                yield group, key, setting


def fields_of(algorithm: str) -> Iterator[tuple[str, str, Field[Any]]]:
    """Yield (group, kebab-case key, dataclass field) of every setting that a method uses."""
    for group in _GROUPS_OF[algorithm]:
        for setting in fields(GROUPS[group]):
            key = kebab(setting.name)
            if key not in _UNUSED[algorithm]:
                yield group, key, setting


def default_text(setting: Field[Any]) -> str:
    """Describe a setting's default in a few words."""
    plain = UNSET if setting.default in (MISSING, None) else str(setting.default)
    study = STUDY_DEFAULTS.get(kebab(setting.name))
    return plain if study is None else f"{study}; with --paper: {plain}"


def type_of(group: str, setting: Field[Any]) -> tuple[type, bool]:
    """Return a setting's plain type and whether it may be unset."""
    hint = typing.get_type_hints(GROUPS[group])[setting.name]
    options = typing.get_args(hint) or (hint,)
    plain = next(option for option in options if option is not NoneType)
    return plain, NoneType in options


def help_texts(group: str) -> dict[str, str]:
    """Read each setting's one description from the ``Parameters`` of its class's docstring."""
    texts: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in inspect.cleandoc(GROUPS[group].__doc__ or "").splitlines():
        if line.startswith("---"):
            continue
        if line and not line.startswith(" "):
            inside = line == "Parameters" or (inside and " : " in line)
            names = line.partition(" : ")[0].split(", ") if " : " in line else []
            texts.update(dict.fromkeys(names, "") if inside else {})
        elif inside:
            for name in names:
                texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts


def typed(key: str, value: Any, plain: type, *, optional: bool) -> Any:
    """Check a value's type; a whole number may stand for a float, an empty text for unset.

    Raises
    ------
    SettingsError
        Naming the key and the expected type.
    """
    if optional and (value is None or value == ""):
        return None
    if plain is float and type(value) is int:
        return float(value)
    if type(value) is not plain:
        raise SettingsError(f"{key} is {value!r}; expected a {plain.__name__}")
    return value


def kebab(name: str) -> str:
    """Return a field's key."""
    return name.replace("_", "-")
