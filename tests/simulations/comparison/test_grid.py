"""A grid of methods and seeds, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulations
from simulations.comparison.grid import read_grid, slug
from simulations.comparison.setting_figure import SettingFigure
from tests.simulations.grids import METHODS, write_grid
from tests.simulations.small_runs import small
from zerofl_flwr.errors import SettingsError

MIXED = "data/cifar10,data/fashion_mnist,data/mnist-10k,data/notmnist-10k,data/fsdd"
"""Local folders, which --dataset names."""
DATASETS = {
    "zerofl-": "zalando-datasets/fashion_mnist",
    "compare-small": "digits",
    "spoken-digits": "data/fsdd",
    "mixed-noniid": MIXED,
    "mixed-cifar": "uoft-cs/cifar10",
    "adasplit-mixed-noniid": MIXED,
    "samples-mixed": MIXED,
    "samples-fashion": "zalando-datasets/fashion_mnist",
}
"""What the grids that come with the package are run on, by how their names begin."""


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("FedAvg, dense", "fedavg-dense"),
        ("top-k-weights, r = .2", "top-k-weights-r-.2"),
        ("SWAT-in-FL (r = sp)", "swat-in-fl-r-sp"),
        ("../../etc", "etc"),
        ("Ünïcode & more", "n-code-more"),
    ],
)
def test_a_methods_name_becomes_a_folder(name: str, folder: str) -> None:
    assert slug(name) == folder


def test_a_grid_is_one_run_per_method_and_seed_first_seeds_first(tmp_path: Path) -> None:
    grid = read_grid(write_grid(tmp_path), tmp_path / "out")
    assert grid.methods == ["Dense, FedAvg", "r = .2 [ours]"]
    assert (grid.figures, grid.setting_figures, grid.pictures) == ({}, {}, [])
    assert (grid.last_tests, grid.tests) == (1, "recorded")
    runs = grid.runs
    assert [(run.method, run.seed) for run in runs] == [
        ("Dense, FedAvg", 3),
        ("r = .2 [ours]", 3),
        ("Dense, FedAvg", 4),
    ]
    assert [str(run.folder.relative_to(tmp_path / "out")) for run in runs] == [
        "dense-fedavg/seed-3",
        "r-.2-ours/seed-3",
        "dense-fedavg/seed-4",
    ]
    tiny = {"num_clients": 4, "clients_per_round": 2, "rounds": 1}
    assert runs[0].settings == small(sparsity=0.0, mask_ratio=0.0, seed=3, **tiny)
    assert runs[1].settings == small(seed=3, **tiny)
    assert runs[2].settings.seed == 4


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"method": METHODS}, "the key 'base' is missing"),
        ({"base": "base.toml"}, "the key 'method' is missing"),
        ({"base": 3, "method": METHODS}, "base is 3; expected a str"),
        ({"base": "base.toml", "method": {"name": "x"}}, "expected a list"),
        ({"base": "base.toml", "method": ["x"]}, "must be [[method]] entries, got 'x'"),
        ({"base": "base.toml", "methods": METHODS}, "unknown key 'methods'; did you mean 'method'"),
        ({"base": "base.toml", "method": [{"seeds": [1]}]}, "the key 'name' is missing"),
        ({"base": "base.toml", "method": [{"name": "x"}]}, "the key 'seeds' is missing"),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": [1], "setting": {}}]},
            "unknown key 'setting'; did you mean 'settings'",
        ),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": [1], "settings": 3}]},
            "settings is 3; expected a dict",
        ),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": ["one"]}]},
            "method 'x', seed one: seed is 'one'; expected a int",
        ),
        (
            {
                "base": "base.toml",
                "method": [{"name": "x", "seeds": [1], "settings": {"sparstiy": 0.9}}],
            },
            "method 'x', seed 1: unknown setting 'sparstiy'; did you mean 'sparsity'",
        ),
        (
            {
                "base": "base.toml",
                "method": [{"name": "A b", "seeds": [1]}, {"name": "a, B", "seeds": [1]}],
            },
            "'A b' and 'a, B' share the folder a-b/seed-1",
        ),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": [1, 1]}]},
            "'x' and 'x' share the folder x/seed-1",
        ),
        (
            {
                "base": "base.toml",
                "method": [
                    {"name": "x", "seeds": [1]},
                    {"name": "x", "seeds": [2], "settings": {"momentum": 0.5}},
                ],
            },
            "two methods are called 'x'; give each its own name",
        ),
        ({"base": "base.toml", "method": []}, "grid.toml has no [[method]] entry"),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": []}]},
            "method 'x': seeds is empty; give at least one",
        ),
        (
            {"base": "base.toml", "method": [{"name": "&/&", "seeds": [1]}]},
            "'&/&' has no letter or digit to name a folder by",
        ),
        (
            {"base": "base.toml", "method": [{"name": "x", "seeds": [1], "settings": {"seed": 2}}]},
            "method 'x': seed is in settings; use the key 'seeds'",
        ),
        ({"base": "none.toml", "method": METHODS}, "there is no config file"),
        (
            {"base": "base.toml", "method": METHODS, "figures": []},
            "unknown key 'figures'; did you mean 'figure'",
        ),
        ({"base": "base.toml", "method": METHODS, "figure": {"name": "x"}}, "expected a list"),
        (
            {"base": "base.toml", "method": METHODS, "last-rounds": 2},
            "unknown key 'last-rounds'; did you mean 'last-tests'?",
        ),
        (
            {"base": "base.toml", "method": METHODS, "tests": "client"},
            "grid.toml: unknown choice of tests 'client'; did you mean 'clients'?",
        ),
        (
            {"base": "base.toml", "method": METHODS, "tests": "clients"},
            "method 'Dense, FedAvg': fraction-evaluate is 0, so that its clients do not test;",
        ),
    ],
)
def test_a_grid_that_cannot_work_is_refused(
    tmp_path: Path, grid: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_grid(write_grid(tmp_path, grid), tmp_path / "out")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "reason"), [(0, "at least 1"), (2.5, "expected a int"), (True, "expected a int")]
)
def test_accuracy_is_averaged_over_a_test_or_more(
    value: float, reason: str, tmp_path: Path
) -> None:
    grid = {"base": "base.toml", "method": METHODS, "last-tests": value}
    with pytest.raises(SettingsError, match=f"last-tests is {value}.*{reason}"):
        read_grid(write_grid(tmp_path, grid), tmp_path / "runs")


def test_a_grid_may_count_its_clients_tests(tmp_path: Path) -> None:
    content = {"base": "base.toml", "method": METHODS, "tests": "clients", "last-tests": 3}
    path = write_grid(tmp_path, content, fraction_evaluate=0.5)
    grid = read_grid(path, tmp_path / "out")
    assert (grid.tests, grid.last_tests) == ("clients", 3)


def test_figures_are_refused_before_anything_runs(tmp_path: Path) -> None:
    line = {"ours": ["Dense, FedAvg", "r = .2 [ours]"]}
    figures = [{"name": "x", "by": "momentum", "lines": line}]
    grid = {"base": "base.toml", "method": METHODS, "figure": figures}
    with pytest.raises(SettingsError, match="'x': line 'ours' of momentum has two points at one"):
        read_grid(write_grid(tmp_path, grid), tmp_path / "out")
    figures[0]["by"] = "sparsity"
    read = read_grid(write_grid(tmp_path, grid), tmp_path / "out")
    assert read.setting_figures == {"x-by-sparsity": SettingFigure("sparsity", line)}
    assert read.figures == {}


def test_pictures_of_an_unknown_method_are_refused_before_anything_runs(tmp_path: Path) -> None:
    grid = {"base": "base.toml", "method": METHODS, "pictures": ["Dense FedAvg"]}
    with pytest.raises(
        SettingsError, match="pictures: unknown method 'Dense FedAvg'; did you mean"
    ):
        read_grid(write_grid(tmp_path, grid), tmp_path / "out")


def test_the_grids_that_come_with_the_package_can_be_read_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = Path(simulations.__file__).parent / "conf"
    grids = sorted(conf.glob("*-grid.toml"))
    assert grids
    monkeypatch.chdir(tmp_path)
    for grid in grids:
        runs = read_grid(grid, Path("out")).runs
        assert len(runs) > 1
        [dataset] = {run.settings.data.dataset for run in runs}
        known = [name for prefix, name in DATASETS.items() if grid.name.startswith(prefix)]
        assert [dataset] == known, grid


def test_the_sweep_that_comes_with_the_package_can_be_read(tmp_path: Path) -> None:
    path = Path(simulations.__file__).parent / "conf" / "adasplit-digits-sweep.toml"
    grid = read_grid(path, tmp_path)
    assert len(grid.methods) == 6
    assert len(grid.runs) == 18
    assert list(grid.setting_figures) == ["accuracy-by-kappa", "accuracy-by-eta"]
    assert grid.methods[1] == "kappa 0.3, eta 0.6"


def test_another_data_set_counts_for_all_runs_but_those_with_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"name": "own", "seeds": [3], "settings": {"dataset": "uoft-cs/cifar10"}}
    grid = write_grid(tmp_path, {"base": "base.toml", "method": [*METHODS, own]})
    (tmp_path / "clothes").mkdir()
    monkeypatch.chdir(tmp_path)

    def datasets(given: str | None) -> set[str]:
        return {run.settings.data.dataset for run in read_grid(grid, tmp_path / "out", given).runs}

    assert datasets(None) == {"digits", "uoft-cs/cifar10"}
    assert datasets("./clothes") == {str(tmp_path / "clothes"), "uoft-cs/cifar10"}
    assert datasets("ylecun/mnist") == {"ylecun/mnist", "uoft-cs/cifar10"}
    with pytest.raises(SettingsError, match=r"the dataset folder \./nowhere does not exist"):
        datasets("./nowhere")


def test_a_sweep_is_a_grid_of_all_combinations_and_seeds(tmp_path: Path) -> None:
    sweep = {
        "base": "base.toml",
        "seeds": [3, 4],
        "settings": {"momentum": 0.9},
        "sweep": {"sparsity": [0.5, 0.9], "mask-ratio": [0.0, 0.1]},
        "last-tests": 2,
        "pictures": ["sparsity 0.5, mask-ratio 0.1"],
    }
    grid = read_grid(write_grid(tmp_path, sweep), tmp_path)
    assert grid.is_sweep
    assert grid.last_tests == 2
    assert grid.methods == [
        "sparsity 0.5, mask-ratio 0.0",
        "sparsity 0.5, mask-ratio 0.1",
        "sparsity 0.9, mask-ratio 0.0",
        "sparsity 0.9, mask-ratio 0.1",
    ]
    assert [(run.method, run.seed) for run in grid.runs] == [
        (method, seed) for seed in (3, 4) for method in grid.methods
    ]
    by_sparsity = grid.setting_figures["accuracy-by-sparsity"]
    assert by_sparsity == SettingFigure(
        "sparsity",
        {
            "mask-ratio 0.0": ["sparsity 0.5, mask-ratio 0.0", "sparsity 0.9, mask-ratio 0.0"],
            "mask-ratio 0.1": ["sparsity 0.5, mask-ratio 0.1", "sparsity 0.9, mask-ratio 0.1"],
        },
    )
    assert list(grid.setting_figures) == ["accuracy-by-sparsity", "accuracy-by-mask-ratio"]
    second = grid.runs[1]
    assert second.folder == tmp_path / "sparsity-0.5-mask-ratio-0.1" / "seed-3"
    assert second.settings.training.momentum == 0.9
    assert (second.settings.zerofl.sparsity, second.settings.zerofl.mask_ratio) == (0.5, 0.1)


def test_a_sweeps_own_figure_replaces_the_one_that_comes_with_it(tmp_path: Path) -> None:
    line = {"mine": ["sparsity 0.9", "sparsity 0.5"]}
    sweep = {
        "base": "base.toml",
        "seeds": [3],
        "sweep": {"sparsity": [0.5, 0.7, 0.9]},
        "figure": [{"name": "accuracy", "by": "sparsity", "lines": line}],
    }
    grid = read_grid(write_grid(tmp_path, sweep), tmp_path)
    assert grid.setting_figures == {"accuracy-by-sparsity": SettingFigure("sparsity", line)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": METHODS}, "has [[method]] entries and a [sweep]; give one of the two"),
        ({"seeds": 3}, "seeds is 3; expected a list"),
        ({"seeds": []}, "method 'sparsity 0.5': seeds is empty"),
        ({"settings": {"seed": 4}}, "method 'sparsity 0.5': seed is in settings"),
        ({"sweep": [1]}, "sweep is [1]; expected a dict"),
        ({"sweep": {"sparsity": []}}, "sweep sparsity is []"),
        ({"sweep": {"sparstiy": [0.5]}}, "unknown setting 'sparstiy'; did you mean 'sparsity'"),
        ({"sweep": {"sparsity": [0.5, 1.5]}}, "method 'sparsity 1.5', seed 3: sparsity must lie"),
        ({"sweep": {"kappa": [0.5]}}, "kappa has no effect with the algorithm zerofl"),
        ({"name": "x"}, "unknown key 'name'"),
    ],
)
def test_a_sweep_that_cannot_work_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    good = {"base": "base.toml", "seeds": [3], "sweep": {"sparsity": [0.5]}}
    with pytest.raises(SettingsError) as caught:
        read_grid(write_grid(tmp_path, good | change), tmp_path / "out")
    assert message in str(caught.value)
