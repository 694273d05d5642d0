from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure

from simulations.adasplit_plots import binned_rounds, client_accuracy, losses, ucb_terms
from simulations.plots import Picture, accuracy_by_megabytes
from tests.simulations.adasplit_run_folders import write_adasplit_run
from zerofl_flwr.errors import DataError


def panels(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return figure.axes


def lines(axes: Axes) -> dict[str, list[list[float]]]:
    return {
        str(line.get_label()): np.asarray(line.get_xydata()).round(9).tolist()
        for line in axes.get_lines()
    }


def bands(axes: Axes) -> dict[str, set[tuple[float, float]]]:
    return {
        str(band.get_label()): {
            (x, y) for x, y in np.asarray(band.get_paths()[0].vertices).round(6).tolist()
        }
        for band in axes.collections
        if isinstance(band, FillBetweenPolyCollection)
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two clients, two local and two global rounds; client 4's last test failed."""
    (tmp_path / "rounds.csv").write_text(
        "round,phase,accuracy,train_loss,server_loss,uplink_bytes,downlink_bytes\n"
        "1,local,,3.0,,0,0\n"
        "2,local,0.2,2.5,,0,0\n"
        "3,global,,2.0,1.5,1000000,500000\n"
        "4,global,0.75,1.5,0.5,2000000,500000\n"
    )
    (tmp_path / "tests.csv").write_text(
        "round,partition_id,accuracy,failure\n2,1,0.25,\n2,4,0.15,\n4,1,0.75,\n4,4,,lost\n"
    )
    (tmp_path / "clients.csv").write_text(
        "round,partition_id,picked,exploitation,exploration,failure\n"
        "2,1,False,,,\n"
        "3,1,True,100,0.9,\n"
        "3,4,False,100,0.9,\n"
        "4,1,False,2.5,1.5,\n"
        "4,4,True,175,1.25,\n"
    )
    return tmp_path


def test_each_client_has_a_line_where_its_test_went_well(run: Path) -> None:
    [axes] = panels(client_accuracy(run))
    drawn = lines(axes)
    assert drawn["client 1"] == [[2, 25], [4, 75]]
    assert drawn["client 4"] == [[2, 15]]
    assert drawn["mean of clients"] == [[2, 20], [4, 75]]
    assert axes.get_xlabel() == "Round"
    assert axes.get_ylabel() == "Test accuracy [%]"


def test_the_global_phase_is_marked_between_rounds_and_named(run: Path) -> None:
    for draw in (client_accuracy, losses):
        for axes in panels(draw(run)):
            ends = [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()]
            assert ends.count([2.5, 2.5]) == 1
            [above] = axes.child_axes
            assert above.get_xticks().tolist() == [2.5]
            [text] = above.get_xticklabels()
            assert text.get_text() == "global phase from round 3"


def test_nothing_is_marked_where_there_is_one_phase_only(run: Path) -> None:
    table = pd.read_csv(run / "rounds.csv").assign(phase="global")
    table.to_csv(run / "rounds.csv", index=False)
    [axes] = panels(client_accuracy(run))
    assert axes.child_axes == []
    assert set(lines(axes)) == {"client 1", "client 4", "mean of clients"}


def test_one_client_alone_is_its_own_mean(run: Path) -> None:
    table = pd.read_csv(run / "tests.csv")
    table[table["partition_id"] == 1].to_csv(run / "tests.csv", index=False)
    (run / "rounds.csv").unlink()
    [axes] = panels(client_accuracy(run))
    assert set(lines(axes)) == {"client 1"}


def test_many_clients_are_drawn_as_median_bands_and_mean(tmp_path: Path) -> None:
    # Eleven clients at 0 %, 1 %, ..., 9 % and 65 %: 10th percentile 1, median 5, 90th 9, mean 10.
    accuracies = [*range(10), 65]
    rows = [f"{t},{i},{a / 100}" for t in (1, 2) for i, a in enumerate(accuracies)]
    (tmp_path / "tests.csv").write_text("\n".join(["round,partition_id,accuracy", *rows]) + "\n")
    [axes] = panels(client_accuracy(tmp_path))
    assert axes.get_title(loc="left") == "Test accuracy of 11 clients"
    assert lines(axes) == {
        "median client": [[1, 5], [2, 5]],
        "mean of clients": [[1, 10], [2, 10]],
    }
    drawn = bands(axes)
    assert drawn["lowest to highest"] == {(1, 0), (1, 65), (2, 0), (2, 65)}
    assert drawn["10th to 90th percentile"] == {(1, 1), (1, 9), (2, 1), (2, 9)}


def test_the_bands_of_one_round_can_be_seen(tmp_path: Path) -> None:
    rows = [f"7,{client},{client / 10}" for client in range(10)]
    (tmp_path / "tests.csv").write_text("\n".join(["round,partition_id,accuracy", *rows]) + "\n")
    [axes] = panels(client_accuracy(tmp_path))
    assert bands(axes)["lowest to highest"] == {(6.7, 0), (6.7, 90), (7.3, 0), (7.3, 90)}


def test_ucb_terms_are_those_of_the_global_phase(run: Path) -> None:
    exploitation, exploration = panels(ucb_terms(run))
    assert lines(exploitation) == {
        "client 1": [[3, 100], [4, 2.5]],
        "client 4": [[3, 100], [4, 175]],
    }
    assert lines(exploration)["client 4"] == [[3, 0.9], [4, 1.25]]
    # 2.5 to 175 is more than a decade, 0.9 to 1.5 is not.
    assert exploitation.get_yscale() == "log"
    assert exploration.get_yscale() == "linear"


def test_terms_that_are_equal_can_be_seen_below_each_other(run: Path) -> None:
    for axes in panels(ucb_terms(run)):
        below, above = axes.get_lines()
        assert below.get_linewidth() > 2 * above.get_linewidth()


def test_ticks_of_a_few_decades_are_plain_numbers(run: Path) -> None:
    exploitation = panels(ucb_terms(run))[0]
    low, high = exploitation.get_ylim()
    ticks = [tick for tick in exploitation.get_yticks() if low <= tick <= high]
    assert ticks == [5, 10, 20, 50, 100, 200]
    assert exploitation.yaxis.get_major_formatter()(50) == "50"


def test_a_term_of_zero_does_not_spoil_the_scale(run: Path) -> None:
    table = pd.read_csv(run / "clients.csv")
    table.loc[4, "exploitation"] = 0.0
    table.to_csv(run / "clients.csv", index=False)
    exploitation = panels(ucb_terms(run))[0]
    low, high = exploitation.get_ylim()
    assert exploitation.get_yscale() == "log"
    assert 1 < low < 2.5
    assert 100 < high < 200


def test_losses_have_a_panel_each_over_the_same_rounds(run: Path) -> None:
    clients, server = panels(losses(run))
    assert next(iter(lines(clients).values())) == [[1, 3], [2, 2.5], [3, 2], [4, 1.5]]
    assert next(iter(lines(server).values())) == [[3, 1.5], [4, 0.5]]
    assert clients.get_xlim() == server.get_xlim()
    assert clients.get_ylabel() == "Contrastive loss (NT-Xent)"
    assert server.get_ylabel() == "Cross-entropy [nats]"


def test_a_loss_that_nobody_trained_on_has_no_panel(run: Path) -> None:
    table = pd.read_csv(run / "rounds.csv")
    table.assign(train_loss=0.0).to_csv(run / "rounds.csv", index=False)
    [axes] = panels(losses(run))
    assert axes.get_title(loc="left") == "Loss of the server"
    table.assign(train_loss=0.0, server_loss=np.nan).to_csv(run / "rounds.csv", index=False)
    assert losses(run) is None


def test_many_rounds_are_binned_and_named_so(tmp_path: Path) -> None:
    run = write_adasplit_run(tmp_path / "run", rounds=200, clients=2, local_rounds=20)
    clients, server = panels(losses(run))
    assert clients.get_xlabel() == "Round (median of 5 to a point)"
    pale, binned = clients.get_lines()[:2]
    assert np.asarray(pale.get_xdata()).tolist() == list(range(1, 201))
    assert np.asarray(binned.get_xdata()).tolist() == list(range(3, 201, 5))
    assert server.get_xlabel() == "Round (median of 5 to a point)"
    [axes] = panels(client_accuracy(run))
    assert axes.get_xlabel() == "Round (median of 5 to a point)"
    assert len(lines(axes)["client 1"]) == 40


def test_a_bin_is_the_middle_round_and_the_median_of_what_there_is() -> None:
    rounds = np.arange(1, 102)
    values = np.full((101, 2), np.nan)
    values[:4, 0] = [1, 9, 3, 4]  # bins of two rounds: 1 and 9, then 3 and 4
    values[3, 1] = 7
    x, medians, step = binned_rounds(rounds, values)
    assert step == 2
    assert x[:2].tolist() == [1.5, 3.5]
    assert x[-1] == 101  # the last bin holds one round
    np.testing.assert_array_equal(medians[:3], [[5, np.nan], [3.5, 7], [np.nan, np.nan]])


def test_a_hundred_rounds_are_not_binned() -> None:
    values = np.arange(100.0)[:, None]
    x, same, step = binned_rounds(np.arange(100), values)
    assert step == 1
    assert x.tolist() == list(range(100))
    assert same is values


@examples(max_examples=30)
@given(st.integers(101, 3000), st.integers(1, 50))
def test_bins_are_few_and_within_their_rounds(count: int, spacing: int) -> None:
    rounds = np.arange(count) * spacing + 1
    x, values, step = binned_rounds(rounds, rounds[:, None].astype(np.float64))
    assert x.size == values.shape[0] == -(-count // step) <= 75
    np.testing.assert_allclose(values[:, 0], x)  # of evenly spaced rounds, mean and median agree
    assert (np.diff(x) > 0).all()


def test_accuracy_by_megabytes_starts_after_the_local_phase(run: Path) -> None:
    [axes] = panels(accuracy_by_megabytes(run))
    assert lines(axes) == {
        "up only": [[0, 20], [3, 75]],
        "up and down": [[0, 20], [4, 75]],
    }


@pytest.mark.parametrize(
    ("draw", "name"),
    [(client_accuracy, "tests.csv"), (ucb_terms, "clients.csv"), (losses, "rounds.csv")],
)
def test_no_data_no_picture(run: Path, draw: Picture, name: str) -> None:
    header = (run / name).read_text().splitlines()[0]
    (run / name).write_text(header + "\n")
    assert draw(run) is None
    (run / name).unlink()
    assert draw(run) is None


def test_the_local_phase_alone_has_no_terms(run: Path) -> None:
    table = pd.read_csv(run / "clients.csv")
    table[table["round"] < 3].to_csv(run / "clients.csv", index=False)
    assert ucb_terms(run) is None


def test_a_table_that_lacks_a_column_is_refused(run: Path) -> None:
    for draw, name, column in (
        (client_accuracy, "tests.csv", "accuracy"),
        (ucb_terms, "clients.csv", "exploration"),
        (losses, "rounds.csv", "server_loss"),
    ):
        whole = pd.read_csv(run / name)
        whole.drop(columns=column).to_csv(run / name, index=False)
        with pytest.raises(DataError, match=rf"columns \['{column}'\] are missing"):
            draw(run)
        whole.to_csv(run / name, index=False)
