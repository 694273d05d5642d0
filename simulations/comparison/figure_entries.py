"""Reads the figures that a grid file asks for, and refuses those that could not be drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from simulations.comparison.keys import check_keys, check_methods
from simulations.comparison.setting_figure import SettingFigure, line_points
from simulations.setting_groups import all_fields
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name

_BY, _LINES = "by", "lines"


def read_figures(
    entries: list[Any], path: Path, methods: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, list[str]], dict[str, SettingFigure]]:
    """Read a file's ``[[figure]]`` entries.

    Parameters
    ----------
    entries : list
        Each with ``name``, and ``methods`` for curves, or ``by`` and ``lines`` for accuracy against
        a setting.
    path : Path
        The file, for errors.
    methods : mapping of str to mapping
        Per method its settings by kebab-case key.

    Returns
    -------
    tuple of (dict of str to list of str, dict of str to SettingFigure)
        Per name of a figure the methods whose curves it has; and per name of a picture's file,
        without ending, what it draws against a setting.

    Raises
    ------
    SettingsError
        If a key is missing or unknown, two figures share a name or one names no file, a method or
        a setting is unknown, or a line has no methods, one without a number, or two at one number.
    """
    curves: dict[str, list[str]] = {}
    by_setting: dict[str, SettingFigure] = {}
    names: set[str] = set()
    for entry in entries:
        if not isinstance(entry, dict):
            raise SettingsError(f"{path}: 'figure' must be [[figure]] entries, got {entry!r}")
        has_lines = _BY in entry or _LINES in entry
        needed: dict[str, type] = {_BY: str, _LINES: dict} if has_lines else {"methods": list}
        if has_lines and "methods" in entry:
            raise SettingsError(f"{path}: a figure has methods, or {_BY} and {_LINES}; not both")
        check_keys(entry, path, {"name": str, **needed}, {})
        name = entry["name"]
        if name in names:
            raise SettingsError(f"{path}: two figures are called {name!r}; give each its own name")
        if not name or Path(name).name != name:
            raise SettingsError(f"{path}: a figure's name is {name!r}, which names no file")
        names.add(name)
        where = f"{path}, figure {name!r}"
        if has_lines:
            figure = _setting_figure(entry, where, methods)
            by_setting[file_stem(name, figure.setting)] = figure
        else:
            _check_named(entry["methods"], methods, where, "methods")
            curves[name] = entry["methods"]
    return curves, by_setting


def file_stem(name: str, setting: str) -> str:
    """Return the name of a picture's file, without its ending."""
    return f"{name}-by-{setting}"


def _setting_figure(
    entry: dict[str, Any], where: str, methods: Mapping[str, Mapping[str, Any]]
) -> SettingFigure:
    known = {key for _, key, _ in all_fields()}
    if entry[_BY] not in known:
        raise SettingsError(f"{where}: {unknown_name('setting', entry[_BY], known)}")
    if not entry[_LINES]:
        raise SettingsError(f"{where}: {_LINES} is empty; give at least one")
    for line, named in entry[_LINES].items():
        if not isinstance(named, list):
            raise SettingsError(f"{where}: line {line!r} is {named!r}; expected a list of methods")
        _check_named(named, methods, where, f"line {line!r}")
    figure = SettingFigure(entry[_BY], entry[_LINES])
    try:
        line_points(figure, methods)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    return figure


def _check_named(named: list[Any], methods: Collection[str], where: str, what: str) -> None:
    if not named:
        raise SettingsError(f"{where}: {what} is empty; give at least one")
    check_methods(named, methods, where)
