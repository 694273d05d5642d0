"""What a report compares: methods with their settings and finished runs, of a grid or as found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulations.comparison.grid import CONFIG, Grid, is_whole, settings_in, without_seed
from simulations.comparison.setting_figure import SettingFigure
from simulations.comparison.sweep import settings_text
from simulations.comparison.tested import CLIENTS, RECORDED, Tests
from simulations.settings import Scalar
from zerofl_flwr.errors import DataError, SettingsError

_ALGORITHM = "algorithm"


@dataclass(frozen=True)
class MethodRun:
    """A finished run of a method."""

    seed: int
    folder: Path


@dataclass(frozen=True)
class Method:
    """A method that is compared.

    Attributes
    ----------
    name : str
        Its name, no other's.
    settings : Mapping[str, Scalar]
        Those of all its runs, by kebab-case key, without the seed.
    runs : tuple of MethodRun
        At least one, each of another seed.
    """

    name: str
    settings: Mapping[str, Scalar]
    runs: tuple[MethodRun, ...]

    @property
    def folders(self) -> list[Path]:
        """The folders of its runs."""
        return [run.folder for run in self.runs]


@dataclass(frozen=True)
class Comparison:
    """Methods, and how they are to be reported.

    Attributes
    ----------
    methods : list of Method
        With at least one finished run each.
    figures : dict[str, list[str]]
        Per figure the methods whose curves it draws; one without a finished run may be among them.
    setting_figures : dict[str, SettingFigure]
        Per picture of accuracy against a setting its file's name, without ending; likewise.
    pictures : list of str
        Methods whose first run is drawn, likewise.
    last_tests : int
        Over how many tests at the end of a run accuracy is averaged.
    tests : {"recorded", "clients"}
        Whose tests: as a run recorded them, or the mean over its clients' own.
    notes : list of str
        What a reader should know: which runs are left out, and whose accuracies are of other
        samples.
    """

    methods: list[Method]
    figures: dict[str, list[str]] = field(default_factory=dict)
    setting_figures: dict[str, SettingFigure] = field(default_factory=dict)
    pictures: list[str] = field(default_factory=list)
    last_tests: int = 1
    tests: Tests = RECORDED
    notes: list[str] = field(default_factory=list)

    @property
    def folders(self) -> dict[str, list[Path]]:
        """The methods' run folders, by name."""
        return {method.name: method.folders for method in self.methods}


def finished_methods(grid: Grid) -> Comparison:
    """Compare the finished runs of a grid, in its order of methods.

    Raises
    ------
    SettingsError
        If a folder holds a run of other settings.
    """
    done = [run for run in grid.runs if run.is_finished()]
    methods = []
    for name in grid.methods:
        runs = [run for run in done if run.method == name]
        if runs:
            settings = without_seed(runs[0].settings)
            found = tuple(MethodRun(run.seed, run.folder) for run in runs)
            methods.append(Method(name, settings, found))
    missing = len(grid.runs) - len(done)
    notes = [f"{missing} of {len(grid.runs)} runs are not finished"] if missing else []
    return Comparison(
        methods,
        figures=grid.figures,
        setting_figures=grid.setting_figures,
        pictures=grid.pictures,
        last_tests=grid.last_tests,
        tests=grid.tests,
        notes=notes + _test_notes(methods, grid.tests),
    )


def found_methods(
    folders: Sequence[Path], last_tests: int = 1, tests: Tests = RECORDED
) -> Comparison:
    """Compare all finished runs in some folders.

    Runs that differ in their seed alone are one method. It is named by its algorithm, where there
    are several, and by those of its settings that not most methods of this algorithm share.

    Parameters
    ----------
    folders : sequence of Path
        Folders of runs, or folders that hold such folders, however deep.
    last_tests : int, optional
        Over how many tests at the end of a run accuracy is averaged.
    tests : {"recorded", "clients"}, optional
        Whose tests: as a run recorded them, or the mean over its clients' own.

    Raises
    ------
    DataError
        If a folder is not there or holds no run.
    SettingsError
        If a run's settings cannot be read, or `last_tests` is below 1.
    """
    if last_tests < 1:
        raise SettingsError(f"last-tests is {last_tests}; it must be at least 1")
    groups: dict[tuple[tuple[str, Scalar], ...], dict[int, Path]] = {}
    notes = []
    for folder in _run_folders(folders):
        settings = settings_in(folder)
        if not is_whole(folder):
            notes.append(f"{os.path.relpath(folder)} is not finished")
            continue
        runs = groups.setdefault(tuple(without_seed(settings).items()), {})
        if (same := runs.setdefault(settings.seed, folder)) is not folder:
            shown, other = os.path.relpath(folder), os.path.relpath(same)
            notes.append(f"{shown} is left out: the same settings and seed as {other}")
    chosen = [dict(items) for items in groups]
    methods = [
        Method(name, settings, tuple(MethodRun(seed, runs[seed]) for seed in sorted(runs)))
        for name, settings, runs in zip(_names(chosen), chosen, groups.values(), strict=True)
    ]
    notes += _test_notes(methods, tests)
    return Comparison(methods, last_tests=last_tests, tests=tests, notes=notes)


def _run_folders(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield each run's folder once, sorted within each of `folders`."""
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: there is no such folder")
        runs = sorted(_runs_below(folder))
        if not runs:
            raise DataError(f"{folder} holds no run: there is no {CONFIG} in it, nor below")
        for run in runs:
            if run not in seen:
                seen.add(run)
                yield run


def _runs_below(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder.resolve()):
        if CONFIG in files:
            below.clear()  # a run's folder holds no other runs
            yield Path(place)


def _test_notes(methods: Sequence[Method], tests: Tests) -> list[str]:
    """Say whose accuracy is not of the same samples as the others'."""
    testers = {method.name: _who_tests(method.settings) for method in methods}
    at_server = [name for name, who in testers.items() if who == "server"]
    if tests == CLIENTS or not at_server or "clients" not in testers.values():
        return []
    note = (
        f"the accuracy of {'; '.join(at_server)} is the server's, on the joint test samples; that "
        "of the others is the mean over clients that test on samples of their own"
    )
    return [note]


def _who_tests(settings: Mapping[str, Scalar]) -> str:
    no_client = settings.get("fraction-evaluate") == 0
    if settings[_ALGORITHM] == "adasplit":
        return "nobody" if no_client else "clients"
    return "server" if no_client or settings[_ALGORITHM] == "zerofl" else "clients"


def _names(methods: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Name methods by their own settings: no path of a folder, unless two would share a name."""
    names = _names_with(methods, short=True)
    return names if len(set(names)) == len(names) else _names_with(methods, short=False)


def _names_with(methods: Sequence[Mapping[str, Scalar]], *, short: bool) -> list[str]:
    several = len({settings[_ALGORITHM] for settings in methods}) > 1
    names = []
    for settings in methods:
        algorithm = str(settings[_ALGORITHM])
        alike = [other for other in methods if other[_ALGORITHM] == algorithm]
        own = settings_text(own_settings(settings, alike), short=short)
        parts = [algorithm] if several or not own else []
        names.append(", ".join([*parts, *([own] if own else [])]))
    return names


def own_settings(
    settings: Mapping[str, Scalar], methods: Sequence[Mapping[str, Scalar]]
) -> dict[str, Scalar | None]:
    """Return those of a method's settings that not most of `methods` share; None for unset."""
    keys = dict.fromkeys(key for method in methods for key in method)
    counts = {key: Counter(method.get(key) for method in methods) for key in keys}
    return {
        key: settings.get(key) for key in keys if 2 * counts[key][settings.get(key)] <= len(methods)
    }
