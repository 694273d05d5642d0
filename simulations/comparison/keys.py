"""Checks the tables of a grid file: their keys, the types of these, and methods that they name."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name


def check_keys(
    table: dict[str, Any], path: Path, needed: dict[str, type], optional: dict[str, type]
) -> None:
    """Refuse a table with an unknown key, without a needed one, or with a value of another type.

    Raises
    ------
    SettingsError
        With the file's path and the key.
    """
    known = needed | optional
    for key in table:
        if key not in known:
            raise SettingsError(f"{path}: {unknown_name('key', key, known)}")
    for key, kind in known.items():
        if key not in table and key in needed:
            raise SettingsError(f"{path}: the key {key!r} is missing")
        if key in table and type(table[key]) is not kind:
            raise SettingsError(f"{path}: {key} is {table[key]!r}; expected a {kind.__name__}")


def check_methods(named: list[Any], methods: Collection[str], where: str) -> None:
    """Refuse a list that names a method which is not there.

    Raises
    ------
    SettingsError
        With `where`, and the nearest name.
    """
    known = list(methods)
    for method in named:
        if method not in known:
            raise SettingsError(f"{where}: {unknown_name('method', str(method), known)}")
