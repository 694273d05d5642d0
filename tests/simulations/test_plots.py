from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulations import plots
from tests.simulations.run_folders import write_run
from zerofl_flwr.errors import DataError


def panels(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return figure.axes


def points(axes: Axes, line: int = 0) -> list[list[float]]:
    data = axes.get_lines()[line].get_xydata()
    return [[round(float(x), 9), round(float(y), 9)] for x, y in np.asarray(data)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "rounds.csv").write_text(
        "round,loss,accuracy,uplink_bytes,downlink_bytes\n"
        "0,2.3,0.1,,\n"
        "1,,,1000000,3000000\n"
        "2,1.9,0.5,2000000,4000000\n"
    )
    (tmp_path / "layers.csv").write_text(
        "round,layer,parameters,nonzero_ratio,mask_overlap,zero_overlap\n"
        "1,conv.weight,10,0.5,,\n"
        "1,fc.weight,20,0.25,,\n"
        "2,conv.weight,10,0.75,0.9,0.99\n"
        "2,fc.weight,20,0.125,0.8,0.98\n"
    )
    (tmp_path / "partitions.csv").write_text("partition_id,cat,dog\n1,2,5\n0,3,1\n")
    return tmp_path


def test_accuracy_is_drawn_where_it_was_measured(run: Path) -> None:
    [axes] = panels(plots.accuracy_by_round(run))
    assert points(axes) == [[0, 10], [2, 50]]
    assert axes.get_xlabel() == "Round"
    assert axes.get_ylabel() == "Test accuracy [%]"


def test_megabytes_add_up_over_rounds_that_were_not_evaluated(run: Path) -> None:
    [axes] = panels(plots.accuracy_by_megabytes(run))
    assert [line.get_label() for line in axes.get_lines()] == ["up and down", "up only"]
    assert points(axes, 0) == [[0, 10], [10, 50]]
    assert points(axes, 1) == [[0, 10], [3, 50]]
    assert "[MB]" in axes.get_xlabel()


def test_each_layer_has_its_line(run: Path) -> None:
    figure = plots.nonzero_ratio(run)
    [axes] = panels(figure)
    assert [line.get_label() for line in axes.get_lines()] == ["conv", "fc"]
    assert points(axes, 0) == [[1, 0.5], [2, 0.75]]
    assert points(axes, 1) == [[1, 0.25], [2, 0.125]]


def test_overlap_has_a_panel_for_kept_and_one_for_zero_positions(run: Path) -> None:
    kept, zeros = panels(plots.mask_overlap(run))
    assert kept.get_title(loc="left") == "Kept positions that stay"
    assert zeros.get_title(loc="left") == "Zero positions that stay"
    assert points(kept, 0)[-1] == [2, 0.9]
    assert points(zeros, 1)[-1] == [2, 0.98]
    assert kept.get_ylim()[0] <= 0.8
    assert zeros.get_ylim()[1] >= 1.0


def test_overlap_of_one_kind_only_has_one_panel(run: Path) -> None:
    table = pd.read_csv(run / "layers.csv").assign(zero_overlap=np.nan)
    table.to_csv(run / "layers.csv", index=False)
    [axes] = panels(plots.mask_overlap(run))
    assert axes.get_title(loc="left") == "Kept positions that stay"


def test_classes_are_stacked_by_client_in_order_of_id(run: Path) -> None:
    [axes] = panels(plots.partitions(run))
    cats, dogs = (patch.get_data() for patch in axes.patches)  # type: ignore[attr-defined]
    assert cats.values.tolist() == [3, 2]
    assert dogs.baseline.tolist() == [3, 2]
    assert dogs.values.tolist() == [4, 7]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1"]
    assert axes.get_title(loc="left") == "Classes by client: 2 clients of 4 to 7 samples"


def test_many_classes_and_layers_get_a_colour_bar(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=3, clients=200, layers=30, classes=62, positions=16)
    for draw in (plots.partitions, plots.nonzero_ratio):
        assert len(panels(draw(run))) == 2
    assert len(panels(plots.mask_overlap(run))) == 3


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (plots.accuracy_by_round, "rounds.csv"),
        (plots.accuracy_by_megabytes, "rounds.csv"),
        (plots.nonzero_ratio, "layers.csv"),
        (plots.mask_overlap, "layers.csv"),
        (plots.partitions, "partitions.csv"),
    ],
)
def test_no_data_no_picture(run: Path, draw: plots.Picture, name: str) -> None:
    header = (run / name).read_text().splitlines()[0]
    (run / name).write_text(header + "\n")
    assert draw(run) is None
    (run / name).unlink()
    assert draw(run) is None


def test_nothing_evaluated_no_picture(run: Path) -> None:
    pd.read_csv(run / "rounds.csv").assign(accuracy=np.nan).to_csv(run / "rounds.csv", index=False)
    assert plots.accuracy_by_round(run) is None
    assert plots.accuracy_by_megabytes(run) is None


def test_nothing_sent_no_picture_by_megabytes(run: Path) -> None:
    table = pd.read_csv(run / "rounds.csv")
    table.assign(uplink_bytes=np.nan, downlink_bytes=0).to_csv(run / "rounds.csv", index=False)
    assert plots.accuracy_by_megabytes(run) is None


@pytest.mark.parametrize("count", ["", "-1"])
def test_a_count_that_cannot_be_is_refused(run: Path, count: str) -> None:
    (run / "partitions.csv").write_text(f"partition_id,cat,dog\n0,3,{count}\n1,2,2\n")
    with pytest.raises(DataError, match="every class count must be a number of at least 0"):
        plots.partitions(run)
