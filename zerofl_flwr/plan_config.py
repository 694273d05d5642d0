"""Plans of a round as entries of a Flower config, and back: scalars under prefixed keys."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, ClassVar, Protocol, TypeVar

from zerofl_flwr.errors import SettingsError

Scalar = bool | float | int | str


class _Plan(Protocol):
    """A dataclass of bools, ints, floats and strings."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


PlanType = TypeVar("PlanType", bound=_Plan)


def to_config(plan: _Plan, prefix: str) -> dict[str, Scalar]:
    """Return a plan's fields under kebab-case keys that start with a prefix."""
    return {_key(prefix, name): value for name, value in asdict(plan).items()}


def from_config(
    plan_type: type[PlanType], config: Mapping[str, Any], prefix: str
) -> PlanType | None:
    """Read a plan back from a Flower config.

    Parameters
    ----------
    plan_type : type
        Dataclass whose fields are bool, int, float or str; a whole number may stand for a float.
    config : mapping
        The message's config; entries of others are left alone.
    prefix : str
        What the plan's keys start with.

    Returns
    -------
    plan or None
        None when the config holds none of the plan's entries: the server's strategy is another.

    Raises
    ------
    SettingsError
        If only some of the entries are there, or one has a wrong type.
    """
    types = typing.get_type_hints(plan_type)
    names = [setting.name for setting in fields(plan_type)]
    given = {name: config[_key(prefix, name)] for name in names if _key(prefix, name) in config}
    if not given:
        return None
    for name, value in given.items():
        if types[name] is float and type(value) is int:
            given[name] = float(value)
        elif type(value) is not types[name]:
            raise SettingsError(
                f"config entry {_key(prefix, name)} is {value!r}; expected a {types[name].__name__}"
            )
    if missing := sorted(_key(prefix, name) for name in names if name not in given):
        raise SettingsError(f"the round's config lacks {', '.join(missing)}")
    return plan_type(**given)


def _key(prefix: str, name: str) -> str:
    return prefix + name.replace("_", "-")
