"""A grid of methods and seeds as runs, checked before any of them starts."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.comparison.sweep import sweep_methods
from simulations.setting_differences import differences
from simulations.settings import RunSettings, read_config
from zerofl_flwr.errors import DataError, LeanFlwrError, SettingsError
from zerofl_flwr.naming import unknown_name

_LAST_ROUNDS = "last-rounds"
_OF_REPORTS: dict[str, type] = {"figure": list, "pictures": list, _LAST_ROUNDS: int}


@dataclass(frozen=True)
class GridRun:
    """One cell of the grid."""

    method: str
    seed: int
    settings: RunSettings
    folder: Path

    def is_finished(self) -> bool:
        """Say whether the folder holds all rounds of exactly these settings.

        Raises
        ------
        SettingsError
            If it holds a run of other settings.
        """
        config = self.folder / "config.toml"
        if not config.exists():
            return False
        if differing := differences(_settings_in(config), self.settings):
            raise SettingsError(
                f"{self.folder} holds a run with other settings; move it away (its {differing})"
            )
        return (self.folder / "model.npz").exists()  # saved after all other results


@dataclass(frozen=True)
class Grid:
    """What a grid file asks for.

    Attributes
    ----------
    runs : list of GridRun
        All methods' first seeds, then their second ones, and so on, so that an unfinished
        comparison compares them already.
    methods : list of str
        Their names, in the file's order.
    figures : dict[str, list[str]]
        Per figure the methods that it draws.
    pictures : list of str
        Methods whose first run is drawn.
    last_rounds : int
        Over how many rounds at the end accuracy is averaged.
    is_sweep : bool
        Whether the methods come from a ``[sweep]``.
    """

    runs: list[GridRun]
    methods: list[str]
    figures: dict[str, list[str]]
    pictures: list[str]
    last_rounds: int
    is_sweep: bool


def read_grid(path: Path, out: Path, dataset: str | None = None) -> Grid:
    """Read a grid file, which names a base config and what changes from method to method.

    Parameters
    ----------
    path : Path
        The file. It has ``base``, and either a list of ``[[method]]`` with ``name``, ``seeds`` and
        perhaps ``settings``, or ``seeds``, perhaps ``[settings]``, and ``[sweep]``: per setting a
        list of values, of which every combination is a method. Of use for the report are
        ``last-rounds`` (1 when it is not given), ``pictures``, a list of methods whose runs are
        drawn, and ``[[figure]]`` entries with ``name`` and ``methods``.
    out : Path
        Folder of the runs.
    dataset : str, optional
        A local folder or a hub name instead of the base's data set. A method that sets a data set
        of its own keeps it.

    Raises
    ------
    SettingsError
        If a key is missing or unknown, a cell's settings cannot work, or a figure is of no use.
    """
    grid = read_config(path)
    methods, is_sweep = _methods_in(grid, path)
    base = read_config(path.parent / grid["base"])
    if dataset is not None:
        base["dataset"] = dataset
    ranked: list[tuple[int, GridRun]] = []
    for method in methods:
        ranked += enumerate(_runs_of_method(method, base, path, out))
    runs = [run for _, run in sorted(ranked, key=lambda pair: pair[0])]
    owners: dict[Path, GridRun] = {}
    for run in runs:
        if (other := owners.setdefault(run.folder, run)) is not run:
            raise SettingsError(
                f"{path}: {other.method!r} and {run.method!r} share the folder "
                f"{run.folder.relative_to(out)}; give each method its own name, and each seed once"
            )
    names = list(dict.fromkeys(method["name"] for method in methods))
    figures = _read_figures(grid.get("figure", []), path, names)
    pictures: list[str] = grid.get("pictures", [])
    _check_methods(pictures, names, f"{path}, pictures")
    last_rounds: int = grid.get(_LAST_ROUNDS, 1)
    if last_rounds < 1:
        raise SettingsError(f"{path}: {_LAST_ROUNDS} is {last_rounds}; it must be at least 1")
    return Grid(runs, names, figures, pictures, last_rounds, is_sweep)


def _methods_in(grid: dict[str, Any], path: Path) -> tuple[list[Any], bool]:
    """Return what the file lists, or what its sweep combines; and whether it is a sweep."""
    if "sweep" not in grid:
        _check_keys(grid, path, {"base": str, "method": list}, _OF_REPORTS)
        methods: list[Any] = grid["method"]
        for method in methods:
            if not isinstance(method, dict):
                raise SettingsError(f"{path}: 'method' must be [[method]] entries, got {method!r}")
            _check_keys(method, path, {"name": str, "seeds": list}, {"settings": dict})
        return methods, False
    if "method" in grid:
        raise SettingsError(f"{path} has [[method]] entries and a [sweep]; give one of the two")
    needed: dict[str, type] = {"base": str, "seeds": list, "sweep": dict}
    _check_keys(grid, path, needed, {"settings": dict, **_OF_REPORTS})
    methods = sweep_methods(grid["sweep"], grid.get("settings", {}), path)
    return [{**method, "seeds": grid["seeds"]} for method in methods], True


def _runs_of_method(
    method: dict[str, Any], base: dict[str, Any], path: Path, out: Path
) -> list[GridRun]:
    name, runs = method["name"], []
    for seed in method["seeds"]:
        try:
            settings = RunSettings.from_mapping(
                {**base, **method.get("settings", {}), "seed": seed}
            ).resolved()
        except LeanFlwrError as error:
            raise SettingsError(f"{path}, method {name!r}, seed {seed}: {error}") from error
        runs.append(GridRun(name, seed, settings, out / slug(name) / f"seed-{seed}"))
    return runs


def _settings_in(config: Path) -> RunSettings:
    settings = RunSettings.from_mapping(read_config(config))
    try:
        return settings.resolved()
    except DataError:  # a data folder that is not here, so not the one that is asked for
        return settings


def _read_figures(figures: list[Any], path: Path, methods: Collection[str]) -> dict[str, list[str]]:
    drawn: dict[str, list[str]] = {}
    for figure in figures:
        if not isinstance(figure, dict):
            raise SettingsError(f"{path}: 'figure' must be [[figure]] entries, got {figure!r}")
        _check_keys(figure, path, {"name": str, "methods": list}, {})
        name = figure["name"]
        if name in drawn:
            raise SettingsError(f"{path}: two figures are called {name!r}; give each its own name")
        if not name or Path(name).name != name:
            raise SettingsError(f"{path}: a figure's name is {name!r}, which names no file")
        _check_methods(figure["methods"], methods, f"{path}, figure {name!r}")
        drawn[name] = figure["methods"]
    return drawn


def _check_methods(named: list[Any], methods: Collection[str], where: str) -> None:
    for method in named:
        if method not in methods:
            raise SettingsError(f"{where}: {unknown_name('method', str(method), methods)}")


def _check_keys(
    table: dict[str, Any], path: Path, needed: dict[str, type], optional: dict[str, type]
) -> None:
    known = needed | optional
    for key in table:
        if key not in known:
            raise SettingsError(f"{path}: {unknown_name('key', key, known)}")
    for key, kind in known.items():
        if key not in table and key in needed:
            raise SettingsError(f"{path}: the key {key!r} is missing")
        if key in table and not isinstance(table[key], kind):
            raise SettingsError(f"{path}: {key} is {table[key]!r}; expected a {kind.__name__}")


def slug(name: str) -> str:
    """Turn a method's name into a folder's."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
