from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from numpy.typing import NDArray

from simulations.adasplit_maps import client_masks, picks
from tests.simulations.adasplit_run_folders import write_adasplit_run, write_client_masks

HEADER = "round,partition_id,failure,picked"
GREY, PALE, DARK, ORANGE = "#e6e6e6", "#9ecae1", "#08306b", "#d55e00"


def write_turns(run: Path, *rows: str) -> None:
    (run / "clients.csv").write_text("\n".join([HEADER, *rows]) + "\n")


def panels(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return figure.axes


def mesh(axes: Axes) -> QuadMesh:
    [found] = [item for item in axes.collections if isinstance(item, QuadMesh)]
    return found


def names(figure: Figure | None) -> list[str]:
    assert figure is not None
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def ids(labels: Sequence[Text]) -> list[str]:
    return [label.get_text() for label in labels]


def values_of(drawn: QuadMesh | AxesImage) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.ma.filled(np.ma.asarray(drawn.get_array(), float), np.nan)
    return array


def test_each_turn_has_the_colour_of_what_happened(tmp_path: Path) -> None:
    write_turns(tmp_path, "4,3,,False", "4,5,,True", "5,3,lost,True")
    figure = picks(tmp_path)
    [axes] = panels(figure)
    turns = mesh(axes)
    shades = np.asarray(turns.to_rgba(values_of(turns)))
    colors = [[to_hex(tuple(cell)) for cell in row] for row in shades.tolist()]
    assert colors == [[PALE, ORANGE], [DARK, GREY]]
    assert names(figure) == ["not asked", "trained only", "picked: uploaded", "failed"]
    assert axes.get_xlim() == (3.5, 5.5)
    assert axes.yaxis_inverted()
    assert ids(axes.get_yticklabels()) == ["3", "5"]


def test_only_what_happened_is_explained(tmp_path: Path) -> None:
    write_turns(tmp_path, "1,0,,False", "1,1,,True")
    assert names(picks(tmp_path)) == ["trained only", "picked: uploaded"]


def test_one_round_has_one_tick(tmp_path: Path) -> None:
    write_turns(tmp_path, "9,0,,False", "9,1,,True")
    [axes] = panels(picks(tmp_path))
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [9]


def test_many_rounds_are_binned_to_shares_of_asked_turns(tmp_path: Path) -> None:
    # 410 rounds make bins of five. Client 0 uploads in two of five and fails in round 3; client 1
    # is asked in rounds 6 and 7 only, and uploads once.
    first = [f"{t},0,{'lost' if t == 3 else ''},{t % 5 < 2}" for t in range(1, 411)]
    write_turns(tmp_path, *first, "6,1,,True", "7,1,,False")
    figure = picks(tmp_path)
    axes, bar = panels(figure)
    shares = values_of(mesh(axes))
    assert shares.shape == (2, 82)
    np.testing.assert_allclose(shares[0], 0.4)
    assert shares[1, 1] == 0.5
    assert np.isnan(np.delete(shares[1], 1)).all()
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert [np.asarray(line.get_xydata()).tolist() for line in crosses] == [[[3, 0]]]
    assert names(figure) == ["not asked", "failed at least once"]
    assert axes.get_xlabel() == "Round, 5 to a column"
    assert axes.get_ylabel() == "Client (partition id)"
    assert axes.get_xlim() == (0.5, 410.5)
    assert bar.get_ylabel() == "Uploads per asked turn"


def test_many_clients_are_binned_as_well(tmp_path: Path) -> None:
    # Clients 0, 2, ..., 80 upload: half of each pair, and all of the last row of one client.
    write_turns(tmp_path, *(f"1,{client},,{client % 2 == 0}" for client in range(81)))
    axes, _ = panels(picks(tmp_path))
    shares = values_of(mesh(axes))
    assert shares[:, 0].tolist() == [0.5] * 40 + [1]
    assert axes.get_xlabel() == "Round"
    assert axes.get_ylabel() == "Client (partition id), 2 to a row"
    assert sorted(axes.get_ylim()) == [-0.5, 80.5]


def test_the_global_phase_is_marked(tmp_path: Path) -> None:
    run = write_adasplit_run(tmp_path / "run", rounds=6, local_rounds=4)
    [axes] = panels(picks(run))
    [line] = axes.get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [4.5, 4.5]
    assert ids(axes.child_axes[0].get_xticklabels()) == ["global phase from round 5"]


def test_a_run_of_another_method_has_neither_picture(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("round,partition_id,failure\n1,0,\n")
    assert picks(tmp_path) is None
    assert client_masks(tmp_path) is None


def test_few_masks_are_drawn_with_their_values(tmp_path: Path) -> None:
    overlap = np.array([[1, 0.25, 0.5], [0.25, 1, 0.375], [0.5, 0.375, 1]])
    write_client_masks(tmp_path, [2, 5, 9], [0.4, 0.5, 0.45], overlap)
    density, matrix, bar = panels(client_masks(tmp_path))
    [dots] = density.get_lines()
    assert np.asarray(dots.get_xydata()).tolist() == [[0, 0.4], [1, 0.5], [2, 0.45]]
    assert [text.get_text() for text in density.texts] == ["0.400", "0.500", "0.450"]
    for labels in (density.get_xticklabels(), matrix.get_xticklabels(), matrix.get_yticklabels()):
        assert ids(labels) == ["2", "5", "9"]
    # The diagonal is no news: it is left out, and does not stretch the scale.
    [image] = matrix.get_images()
    np.testing.assert_array_equal(values_of(image), np.where(np.eye(3) == 1, np.nan, overlap))
    assert image.get_clim() == (0.25, 0.5)
    assert [(*text.get_position(), text.get_text()) for text in matrix.texts] == [
        (1, 0, "0.25"),
        (2, 0, "0.50"),
        (0, 1, "0.25"),
        (2, 1, "0.38"),
        (0, 2, "0.50"),
        (1, 2, "0.38"),
    ]
    assert bar.get_ylabel() == "Both positive / either positive"


def test_text_stands_out_from_its_cell(tmp_path: Path) -> None:
    overlap = np.array([[1, 0.1, 0.9], [0.1, 1, 0.5], [0.9, 0.5, 1]])
    write_client_masks(tmp_path, [0, 1, 2], [0.4, 0.5, 0.45], overlap)
    matrix = panels(client_masks(tmp_path))[1]
    colors = {text.get_text(): text.get_color() for text in matrix.texts}
    assert colors == {"0.10": "white", "0.50": "white", "0.90": "black"}


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0.33, 0.34, 0.335], (0.285, 0.385)),  # almost the same: no structure to be seen
        ([0.0, 0.0, 0.0], (0.0, 0.1)),
        ([1.0, 1.0, 0.98], (0.9, 1.0)),
        ([0.2, 0.9, 0.5], (0.2, 0.9)),
    ],
)
def test_the_scale_does_not_blow_up_noise(
    tmp_path: Path, values: list[float], limits: tuple[float, float]
) -> None:
    overlap = np.eye(3)
    for (row, column), value in zip(((0, 1), (0, 2), (1, 2)), values, strict=True):
        overlap[row, column] = overlap[column, row] = value
    write_client_masks(tmp_path, [0, 1, 2], [0.5, 0.5, 0.5], overlap)
    [image] = panels(client_masks(tmp_path))[1].get_images()
    assert image.get_clim() == pytest.approx(limits)


def test_many_masks_have_no_texts(tmp_path: Path) -> None:
    run = write_adasplit_run(tmp_path / "run", rounds=2, clients=9)
    density, matrix, _ = panels(client_masks(run))
    assert len(density.texts) == len(matrix.texts) == 0
    assert len(np.asarray(density.get_lines()[0].get_xdata())) == 9


def test_one_mask_has_no_overlap(tmp_path: Path) -> None:
    write_client_masks(tmp_path, [4], [0.46], np.ones((1, 1)))
    [density] = panels(client_masks(tmp_path))
    low, high = density.get_ylim()
    assert low < 0.46 < high
    assert ids(density.get_xticklabels()) == ["4"]
