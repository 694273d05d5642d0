"""The grid of a study: its methods and seeds as runs, checked before any of them starts."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.setting_differences import differences
from simulations.settings import RunSettings, read_config
from zerofl_flwr.errors import DataError, LeanFlwrError, SettingsError
from zerofl_flwr.naming import unknown_name

LAST_ROUNDS = "last-rounds"


@dataclass(frozen=True)
class StudyRun:
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


def _settings_in(config: Path) -> RunSettings:
    settings = RunSettings.from_mapping(read_config(config))
    try:
        return settings.resolved()
    except DataError:  # a data folder that is not here, so not the one that is asked for
        return settings


def read_grid(path: Path, out: Path, dataset: str | None = None) -> list[StudyRun]:
    """Read a grid file: ``base``, and a list of ``[[method]]`` with name, seeds and settings.

    Parameters
    ----------
    path : Path
        The grid file. Its ``[[figure]]`` entries, the list ``pictures`` of methods whose runs are
        drawn, and ``last-rounds``, over how many rounds the accuracy is averaged at the end, are
        checked here and used by `simulations.study_report`.
    out : Path
        Folder of the runs.
    dataset : str, optional
        A local folder or a hub name instead of the base's data set. A method that sets a data set
        of its own keeps it.

    Returns
    -------
    list of StudyRun
        All methods' first seeds, then their second ones, and so on.

    Raises
    ------
    SettingsError
        If a key is missing or unknown, a cell's settings cannot work, or a figure is of no use.
    """
    grid = read_config(path)
    optional: dict[str, type] = {"figure": list, "pictures": list, LAST_ROUNDS: int}
    _check_keys(grid, path, {"base": str, "method": list}, optional)
    base = read_config(path.parent / grid["base"])
    if dataset is not None:
        base["dataset"] = dataset
    ranked: list[tuple[int, StudyRun]] = []
    for method in grid["method"]:
        ranked += enumerate(_runs_of_method(method, base, path, out))
    # All methods' first seeds come first, so that an unfinished study compares them already.
    runs = [run for _, run in sorted(ranked, key=lambda pair: pair[0])]
    owners: dict[Path, StudyRun] = {}
    for run in runs:
        if (other := owners.setdefault(run.folder, run)) is not run:
            raise SettingsError(
                f"{path}: {other.method!r} and {run.method!r} share the folder "
                f"{run.folder.relative_to(out)}; give each method its own name, and each seed once"
            )
    methods = list(dict.fromkeys(run.method for run in runs))
    _check_figures(grid.get("figure", []), path, methods)
    _check_methods(grid.get("pictures", []), methods, f"{path}, pictures")
    if grid.get(LAST_ROUNDS, 1) < 1:
        raise SettingsError(f"{path}: {LAST_ROUNDS} is {grid[LAST_ROUNDS]}; it must be at least 1")
    return runs


def _runs_of_method(method: Any, base: dict[str, Any], path: Path, out: Path) -> list[StudyRun]:
    if not isinstance(method, dict):
        raise SettingsError(f"{path}: 'method' must be [[method]] entries, got {method!r}")
    _check_keys(method, path, {"name": str, "seeds": list}, {"settings": dict})
    name, runs = method["name"], []
    for seed in method["seeds"]:
        try:
            settings = RunSettings.from_mapping(
                {**base, **method.get("settings", {}), "seed": seed}
            ).resolved()
        except LeanFlwrError as error:
            raise SettingsError(f"{path}, method {name!r}, seed {seed}: {error}") from error
        runs.append(StudyRun(name, seed, settings, out / slug(name) / f"seed-{seed}"))
    return runs


def _check_figures(figures: list[Any], path: Path, methods: Collection[str]) -> None:
    drawn: set[str] = set()
    for figure in figures:
        if not isinstance(figure, dict):
            raise SettingsError(f"{path}: 'figure' must be [[figure]] entries, got {figure!r}")
        _check_keys(figure, path, {"name": str, "methods": list}, {})
        name = figure["name"]
        if name in drawn:
            raise SettingsError(f"{path}: two figures are called {name!r}; give each its own name")
        drawn.add(name)
        if not name or Path(name).name != name:
            raise SettingsError(f"{path}: a figure's name is {name!r}, which names no file")
        _check_methods(figure["methods"], methods, f"{path}, figure {name!r}")


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
