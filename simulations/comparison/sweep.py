"""The methods of a sweep: every combination of its settings' values."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from zerofl_flwr.errors import SettingsError

SEED = "seed"
_PATHS = ("dataset", "state-dir")


def sweep_methods(
    sweep: dict[str, Any], common: dict[str, Any], path: Path
) -> list[dict[str, Any]]:
    """Return a method for each combination of values.

    Parameters
    ----------
    sweep : dict
        Per setting the list of its values. The first setting changes slowest.
    common : dict
        Settings of all methods.
    path : Path
        The file that they come from, for errors.

    Returns
    -------
    list of dict
        With ``name``, such as ``"kappa 0.3, eta 0.6"``, and ``settings``.

    Raises
    ------
    SettingsError
        If there is nothing to combine, a list is none or holds a value twice, or a setting is
        given in both places.
    """
    if not sweep:
        raise SettingsError(f"{path}: [sweep] is empty; give a setting and a list of its values")
    for key, values in sweep.items():
        if key == SEED:
            raise SettingsError(f"{path}: {SEED} is no setting of a [sweep]; use the key 'seeds'")
        if key in common:
            raise SettingsError(f"{path}: {key} is in [settings] and in [sweep]")
        if not isinstance(values, list) or not values:
            raise SettingsError(
                f"{path}: sweep {key} is {values!r}; expected a list of at least one value"
            )
        if twice := [value for i, value in enumerate(values) if value in values[:i]]:
            raise SettingsError(f"{path}: sweep {key} holds {twice[0]!r} twice")
    methods = []
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        methods.append({"name": settings_text(chosen), "settings": common | chosen})
    return methods


def settings_text(settings: dict[str, Any], *, short: bool = False) -> str:
    """Name settings in a line, ``"kappa 0.3, mask hard"``; if `short`, as :func:`setting_text`."""
    texts = {k: setting_text(k, v) if short else value_text(v) for k, v in settings.items()}
    return ", ".join(f"{key} {text}" for key, text in texts.items())


def setting_text(key: str, value: object) -> str:
    """Return a value as :func:`value_text`; of a local folder its name, wherever it is."""
    text = value_text(value)
    if key not in _PATHS:
        return text
    return ",".join(Path(p).name if Path(p).is_absolute() else p for p in text.split(","))


def value_text(value: object) -> str:
    """Return a setting's value as a config file has it, without quotes; unset for none."""
    if value is None or value == "":
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)
