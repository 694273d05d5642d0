"""Which methods a report compares, of a grid and of folders as they are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.comparison.grid import read_grid
from simulations.comparison.methods import finished_methods, found_methods, own_settings
from simulations.settings import RunSettings
from tests.simulations.finished_runs import write_finished
from tests.simulations.grids import METHODS, write_grid
from tests.simulations.small_runs import small
from tests.simulations.small_split_runs import small_split
from zerofl_flwr.errors import DataError, SettingsError


def finish(folder: Path, **settings: Any) -> Path:
    return write_finished(folder, small(**settings), [0.1, 0.5])


def test_a_grid_gives_its_names_order_and_finished_runs(tmp_path: Path) -> None:
    figure = {"name": "both", "methods": ["r = .2 [ours]", "Dense, FedAvg"]}
    content = {"base": "base.toml", "method": METHODS, "figure": [figure], "last-tests": 3}
    grid = read_grid(write_grid(tmp_path, content), tmp_path / "out")
    for run in grid.runs:
        if run.method == "Dense, FedAvg":
            write_finished(run.folder, run.settings, [0.1, 0.5])
    found = finished_methods(grid)
    [method] = found.methods
    assert method.name == "Dense, FedAvg"
    assert [run.seed for run in method.runs] == [3, 4]
    assert method.settings["sparsity"] == 0.0
    assert "seed" not in method.settings
    assert found.folders == {
        "Dense, FedAvg": [tmp_path / "out" / "dense-fedavg" / f"seed-{seed}" for seed in (3, 4)]
    }
    assert found.figures == {"both": ["r = .2 [ours]", "Dense, FedAvg"]}
    assert (found.last_tests, found.tests) == (3, "recorded")
    assert found.notes == ["1 of 3 runs are not finished"]


def test_runs_that_differ_in_their_seed_alone_are_one_method(tmp_path: Path) -> None:
    second = finish(tmp_path / "runs" / "a" / "deep", seed=12)
    first = finish(tmp_path / "runs" / "b", seed=2)
    other = finish(tmp_path / "runs" / "c", seed=2, sparsity=0.5)
    found = found_methods([tmp_path / "runs"])
    assert found.folders == {"sparsity 0.9": [first, second], "sparsity 0.5": [other]}
    assert [run.seed for run in found.methods[0].runs] == [2, 12]
    assert found.notes == []
    # A run may be named by itself, and counts once.
    again = found_methods([other, tmp_path / "runs", first])
    assert again.folders == {"sparsity 0.5": [other], "sparsity 0.9": [first, second]}


def test_names_leave_out_what_most_methods_share(tmp_path: Path) -> None:
    changed: list[dict[str, Any]] = [{}, {"sparsity": 0.5}, {"rule": "top-k-diff"}]
    for place, changes in enumerate(changed):
        finish(tmp_path / str(place), **changes)
    split = small_split()
    write_finished(tmp_path / "split", split, [0.1, 0.5])
    names = [method.name for method in found_methods([tmp_path]).methods]
    assert names == ["zerofl", "zerofl, sparsity 0.5", "zerofl, rule top-k-diff", "adasplit"]
    assert found_methods([tmp_path / "split"]).methods[0].name == "adasplit"


def test_folders_are_named_without_their_path_unless_two_would_be_the_same(tmp_path: Path) -> None:
    for place in ("cats", "dogs", "other/cats"):
        (tmp_path / place).mkdir(parents=True)
        finish(tmp_path / "runs" / place, dataset=str(tmp_path / place))
    found = found_methods([tmp_path / "runs" / "cats", tmp_path / "runs" / "dogs"])
    assert list(found.folders) == ["dataset cats", "dataset dogs"]
    assert list(found_methods([tmp_path / "runs"]).folders) == [
        f"dataset {tmp_path / place}" for place in ("cats", "dogs", "other/cats")
    ]


def test_a_setting_that_a_method_lacks_is_its_own_when_most_have_it() -> None:
    methods = [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 3}]
    assert [own_settings(method, methods) for method in methods] == [{}, {}, {"a": 3, "b": None}]


def test_what_is_unfinished_or_the_same_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = finish(tmp_path / "a")
    finish(tmp_path / "b")
    (finish(tmp_path / "c", seed=9) / "model.npz").unlink()
    found = found_methods([tmp_path])
    assert found.folders == {"zerofl": [first]}
    assert found.notes == [
        "b is left out: the same settings and seed as a",
        "c is not finished",
    ]


def test_whose_accuracy_is_of_other_samples_is_told(tmp_path: Path) -> None:
    finish(tmp_path / "sparse")
    assert found_methods([tmp_path]).notes == []
    write_finished(tmp_path / "split", small_split(), [0.1, 0.5])
    baseline = {"algorithm": "baseline", "num-clients": 8, "clients-per-round": 4}
    dense = RunSettings.from_mapping(baseline | {"fraction-evaluate": 0.0})
    write_finished(tmp_path / "dense", dense, [0.1, 0.5])
    found = found_methods([tmp_path])
    assert [method.name for method in found.methods] == ["baseline", "zerofl", "adasplit"]
    [note] = found.notes
    assert note == (
        "the accuracy of baseline; zerofl is the server's, on the joint test samples; that of the "
        "others is the mean over clients that test on samples of their own"
    )
    write_finished(tmp_path / "own", RunSettings.from_mapping(baseline), [0.1, 0.5])
    [note] = found_methods([tmp_path / "own", tmp_path / "sparse"]).notes
    assert note.startswith("the accuracy of zerofl is the server's")
    own = found_methods([tmp_path / "own", tmp_path / "sparse"], tests="clients")
    assert (own.tests, own.notes) == ("clients", [])
    assert found_methods([tmp_path / "own", tmp_path / "split"]).notes == []
    write_finished(tmp_path / "untested", small_split(fraction_evaluate=0.0), [None, None])
    assert found_methods([tmp_path / "untested", tmp_path / "sparse"]).notes == []


def test_folders_without_runs_and_runs_of_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: there is no such folder"):
        found_methods([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no run: there is no config\.toml in it"):
        found_methods([tmp_path / "empty"])
    run = finish(tmp_path / "run")
    (run / "config.toml").write_text("sparstiy = 0.9\n")
    with pytest.raises(SettingsError, match=r"run.config\.toml: unknown setting 'sparstiy'"):
        found_methods([tmp_path / "run"])
    with pytest.raises(SettingsError, match="last-tests is 0; it must be at least 1"):
        found_methods([tmp_path], last_tests=0)
