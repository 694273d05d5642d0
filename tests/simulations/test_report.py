from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from simulations.report import PICTURES, write_plots
from tests.simulations.adasplit_run_folders import ADASPLIT_PICTURES, write_adasplit_run
from tests.simulations.drawn_texts import overlapping_texts
from tests.simulations.run_folders import write_masks, write_run
from zerofl_flwr.errors import DataError

ZEROFL_PICTURES = [name for name in PICTURES if name not in ADASPLIT_PICTURES]


def assert_shows_something(written: list[Path]) -> None:
    for path in written:
        pixels = imread(path)[..., :3]
        assert path.stat().st_size > 5_000, path.name
        assert pixels.shape[0] > 400, path.name
        assert pixels.shape[1] > 600, path.name
        assert pixels.var() > 0.005, path.name


def assert_nothing_is_cut_off(written: list[Path]) -> None:
    for path in written:
        pixels = imread(path)[..., :3]
        for edge in (pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]):
            assert (edge == 1).all(), path.name


@pytest.mark.parametrize(
    "size",
    [
        {},
        {"rounds": 60, "layers": 20, "clients": 500, "classes": 62, "positions": 1024},
    ],
    ids=["small", "large"],
)
def test_every_picture_is_written_and_shows_something(tmp_path: Path, size: dict[str, int]) -> None:
    run = write_run(tmp_path / "run", **size)
    written = write_plots(run)
    assert written == [run / "plots" / f"{name}.png" for name in ZEROFL_PICTURES]
    assert_shows_something(written)


def test_every_picture_of_adasplit_is_written_and_shows_something(tmp_path: Path) -> None:
    run = write_adasplit_run(tmp_path / "run")
    written = write_plots(run)
    common = {"accuracy_by_round", "accuracy_by_megabytes", "partitions"}
    assert {path.stem for path in written} == {*common, *ADASPLIT_PICTURES}
    assert_shows_something(written)
    assert_nothing_is_cut_off(written)


@pytest.mark.parametrize(
    "size",
    [
        {"rounds": 1, "local_rounds": 0},
        {"clients": 50, "rounds": 20, "asked": 12, "local_rounds": 18},
        {"rounds": 1260, "local_rounds": 40},
    ],
    ids=str,
)
def test_no_text_of_adasplits_pictures_covers_another(tmp_path: Path, size: dict[str, int]) -> None:
    run = write_adasplit_run(tmp_path / "run", **size)
    for name in ADASPLIT_PICTURES:
        figure = PICTURES[name](run)
        assert figure is not None, name
        assert overlapping_texts(figure) == [], name


def test_nothing_is_cut_off_at_the_edges(tmp_path: Path) -> None:
    written = write_plots(write_run(tmp_path / "run", layers=12))
    assert len(written) == len(ZEROFL_PICTURES)
    assert_nothing_is_cut_off(written)


def test_one_round_has_everything_but_the_overlap_with_the_round_before(tmp_path: Path) -> None:
    written = write_plots(write_run(tmp_path / "run", rounds=1, clients=1, layers=1, positions=3))
    assert {path.stem for path in written} == set(ZEROFL_PICTURES) - {"mask_overlap"}


def test_missing_files_skip_their_pictures(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "layers.csv").unlink()
    (run / "zero_positions.npz").unlink()
    names = {path.stem for path in write_plots(run)}
    assert names == {"accuracy_by_round", "accuracy_by_megabytes", "partitions"}


def test_an_empty_folder_has_no_plots_and_no_folder_is_an_error(tmp_path: Path) -> None:
    assert write_plots(tmp_path) == []
    assert not (tmp_path / "plots").exists()
    with pytest.raises(DataError, match="no such run folder"):
        write_plots(tmp_path / "nowhere")


def test_names_that_look_like_formulas_can_be_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", layers=1, classes=2)
    partitions = pd.read_csv(run / "partitions.csv").rename(columns={"1": "$_$"})
    partitions.to_csv(run / "partitions.csv", index=False)
    pd.read_csv(run / "layers.csv").assign(layer="$_$").to_csv(run / "layers.csv", index=False)
    write_masks(run, [1, 2], {"$_$": np.array([[True, False], [False, True]])})
    assert len(write_plots(run)) == len(ZEROFL_PICTURES)


def test_a_picture_that_fails_is_named_and_the_others_are_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", layers=1)
    (run / "layers.csv").write_text("round\n1\n")
    (run / "zero_positions.npz").write_bytes(b"broken")
    with pytest.raises(DataError) as caught:
        write_plots(run)
    for name in ("nonzero_ratio", "mask_overlap", "zero_positions", "overlap_matrix"):
        assert re.search(rf"{name}: (the mask history )?{run}", str(caught.value)), name
    names = {path.stem for path in (run / "plots").iterdir()}
    assert names == {"accuracy_by_round", "accuracy_by_megabytes", "partitions"}
