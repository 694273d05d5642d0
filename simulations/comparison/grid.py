"""A grid of methods and seeds as runs, checked before any of them starts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.comparison.figure_entries import file_stem, read_figures
from simulations.comparison.keys import check_keys, check_methods
from simulations.comparison.setting_figure import SettingFigure, sweep_figures
from simulations.comparison.sweep import SEED, sweep_methods
from simulations.comparison.tested import CLIENTS, RECORDED, Tests, checked_tests
from simulations.setting_differences import differences
from simulations.settings import RunSettings, Scalar, read_config
from zerofl_flwr.errors import DataError, LeanFlwrError, SettingsError

CONFIG = "config.toml"
"""File of a run with its settings."""

ALL = "accuracy"
"""Name of the figure of all methods, which is drawn when a grid asks for none."""

_LAST_TESTS, _TESTS = "last-tests", "tests"
_OF_REPORTS: dict[str, type] = {"figure": list, "pictures": list, _LAST_TESTS: int, _TESTS: str}


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
        if not (self.folder / CONFIG).exists():
            return False
        if differing := differences(_resolved(settings_in(self.folder)), self.settings):
            raise SettingsError(
                f"{self.folder} holds a run with other settings; move it away (its {differing})"
            )
        return is_whole(self.folder)


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
        Per figure the methods whose curves it draws.
    setting_figures : dict[str, SettingFigure]
        Per picture of accuracy against a setting its file's name, without ending.
    pictures : list of str
        Methods whose first run is drawn.
    last_tests : int
        Over how many tests at the end of a run accuracy is averaged.
    tests : {"recorded", "clients"}
        Whose tests: as a run recorded them, or the mean over its clients' own.
    is_sweep : bool
        Whether the methods come from a ``[sweep]``.
    """

    runs: list[GridRun]
    methods: list[str]
    figures: dict[str, list[str]]
    setting_figures: dict[str, SettingFigure]
    pictures: list[str]
    last_tests: int
    tests: Tests
    is_sweep: bool


def read_grid(path: Path, out: Path, dataset: str | None = None) -> Grid:
    """Read a grid file, which names a base config and what changes from method to method.

    Parameters
    ----------
    path : Path
        The file. It has ``base``, and either a list of ``[[method]]`` with ``name``, ``seeds`` and
        perhaps ``settings``, or ``seeds``, perhaps ``[settings]``, and ``[sweep]``: per setting a
        list of values, of which every combination is a method. Of use for the report are
        ``last-tests`` (1 when it is not given), ``tests`` (``"recorded"``, or ``"clients"``),
        ``pictures``, a list of methods whose runs are drawn, and ``[[figure]]`` entries, as
        `read_figures` takes them. A sweep has a figure of each setting of numbers that it varies.
    out : Path
        Folder of the runs.
    dataset : str, optional
        A local folder or a hub name instead of the base's data set. A method that sets a data set
        of its own keeps it.

    Raises
    ------
    SettingsError
        If a key is missing or unknown, a method has no seed or shares its name with another, its
        settings cannot work, a figure is of no use, or clients do not test whose tests count.
    """
    grid = read_config(path)
    methods, is_sweep = _methods_in(grid, path)
    names = [method["name"] for method in methods]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise SettingsError(f"{path}: two methods are called {twice[0]!r}; give each its own name")
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
    settings = {run.method: without_seed(run.settings) for run in runs}
    figures, by_setting = read_figures(grid.get("figure", []), path, settings)
    if is_sweep:
        varied = sweep_figures(grid["sweep"], names)
        by_setting = {file_stem(ALL, key): one for key, one in varied.items()} | by_setting
    pictures: list[str] = grid.get("pictures", [])
    check_methods(pictures, names, f"{path}, pictures")
    last_tests: int = grid.get(_LAST_TESTS, 1)
    if last_tests < 1:
        raise SettingsError(f"{path}: {_LAST_TESTS} is {last_tests}; it must be at least 1")
    tests = _read_tests(grid, path, runs)
    return Grid(runs, names, figures, by_setting, pictures, last_tests, tests, is_sweep)


def _read_tests(grid: dict[str, Any], path: Path, runs: list[GridRun]) -> Tests:
    try:
        tests = checked_tests(grid.get(_TESTS, RECORDED))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    if tests == CLIENTS:
        for run in runs:
            if run.settings.simulation.evaluating_fraction == 0:
                raise SettingsError(
                    f"{path}, method {run.method!r}: fraction-evaluate is 0, so that its clients "
                    f"do not test; set it above 0, as {_TESTS} is {CLIENTS!r}"
                )
    return tests


def _methods_in(grid: dict[str, Any], path: Path) -> tuple[list[Any], bool]:
    """Return what the file lists, or what its sweep combines; and whether it is a sweep."""
    if "sweep" not in grid:
        check_keys(grid, path, {"base": str, "method": list}, _OF_REPORTS)
        methods: list[Any] = grid["method"]
        if not methods:
            raise SettingsError(f"{path} has no [[method]] entry")
        for method in methods:
            if not isinstance(method, dict):
                raise SettingsError(f"{path}: 'method' must be [[method]] entries, got {method!r}")
            check_keys(method, path, {"name": str, "seeds": list}, {"settings": dict})
        return methods, False
    if "method" in grid:
        raise SettingsError(f"{path} has [[method]] entries and a [sweep]; give one of the two")
    needed: dict[str, type] = {"base": str, "seeds": list, "sweep": dict}
    check_keys(grid, path, needed, {"settings": dict, **_OF_REPORTS})
    methods = sweep_methods(grid["sweep"], grid.get("settings", {}), path)
    return [{**method, "seeds": grid["seeds"]} for method in methods], True


def _runs_of_method(
    method: dict[str, Any], base: dict[str, Any], path: Path, out: Path
) -> list[GridRun]:
    name, own, runs = method["name"], method.get("settings", {}), []
    if not slug(name):
        raise SettingsError(f"{path}: {name!r} has no letter or digit to name a folder by")
    if not method["seeds"]:
        raise SettingsError(f"{path}, method {name!r}: seeds is empty; give at least one")
    if SEED in own:
        raise SettingsError(f"{path}, method {name!r}: {SEED} is in settings; use the key 'seeds'")
    for seed in method["seeds"]:
        try:
            settings = RunSettings.from_mapping({**base, **own, SEED: seed}).resolved()
        except LeanFlwrError as error:
            raise SettingsError(f"{path}, method {name!r}, seed {seed}: {error}") from error
        runs.append(GridRun(name, seed, settings, out / slug(name) / f"seed-{seed}"))
    return runs


def settings_in(folder: Path) -> RunSettings:
    """Read the settings of the run in a folder.

    Raises
    ------
    SettingsError
        If they are missing or cannot be; the file is named.
    """
    config = folder / CONFIG
    try:
        return RunSettings.from_mapping(read_config(config))
    except SettingsError as error:
        raise SettingsError(f"{config}: {error}") from error


def without_seed(settings: RunSettings) -> dict[str, Scalar]:
    """Return a method's settings, which all of its seeds share."""
    return {key: value for key, value in settings.to_mapping().items() if key != SEED}


def is_whole(folder: Path) -> bool:
    """Say whether a run's folder holds all of its rounds."""
    return (folder / "model.npz").exists()  # saved after all other results


def _resolved(settings: RunSettings) -> RunSettings:
    try:
        return settings.resolved()
    except DataError:  # a data folder that is not here, so not the one that is asked for
        return settings


def slug(name: str) -> str:
    """Turn a method's name into a folder's."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
