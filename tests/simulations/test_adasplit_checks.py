"""What of AdaSplit's data and settings is refused, or warned of, at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulations
from simulations import runner
from simulations.adasplit_checks import check_split_run, split_run_warnings
from simulations.comparison.grid import read_grid
from simulations.preflight import check
from simulations.recorder import Recorder
from simulations.settings import RunSettings, read_config
from strategies.adasplit_sharing import Sharing
from tests.simulations.changed_settings import settings_with
from zerofl_flwr.errors import SettingsError

SMALL = {
    "algorithm": "adasplit",
    "num-clients": 8,
    "clients-per-round": 4,
    "rounds": 4,
    "validation-fraction": 0.2,
    "batch-size": 16,
    "backend": "in-process",
}


def small(**changes: Any) -> RunSettings:
    return settings_with(SMALL, **changes)


class Holding:
    """Data of which the labels alone are known."""

    def __init__(self, labels: list[list[int]]) -> None:
        self.labels = labels
        self.num_partitions = len(labels)

    def training_labels(self, partition_id: int) -> Any:
        return np.array(self.labels[partition_id], np.int64)


def warned(labels: list[list[int]], **changes: Any) -> list[str]:
    return split_run_warnings(small(**changes), Holding(labels))  # type: ignore[arg-type]


def test_full_batches_need_a_batch_of_samples_at_each_client() -> None:
    data: Any = Holding([[0, 1] * 8, [0, 1] * 9, [0] * 15, [0] * 3])
    message = (
        "full-batches is on, but client 2 trains on 15 samples, which do not fill one batch: "
        "lower batch-size, now 16"
    )
    with pytest.raises(SettingsError, match=message):
        check_split_run(small(full_batches=True), data)
    check_split_run(small(full_batches=True, batch_size=3), data)
    check_split_run(small(), data)


def test_too_few_samples_for_a_full_batch_are_found_before_the_run() -> None:
    # Six clients have 180 digits and two 179; a fifth of them is held out.
    check(small(full_batches=True, batch_size=144))
    with pytest.raises(SettingsError, match=r"client 0 trains on 144 samples, .* now 145"):
        check(small(full_batches=True, batch_size=145))


def test_tests_at_the_server_need_somebody_who_tests() -> None:
    with pytest.raises(SettingsError, match="inference is 'server', but fraction-evaluate is 0"):
        check(small(inference="server", fraction_evaluate=0.0))
    check(small(inference="client", fraction_evaluate=0.0))
    check(small(inference="server"))


def test_memory_without_room_for_a_mask_is_found_before_a_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # Behind its first block, LeNet for digits has 591,360 weights: 7,096,320 bytes a client.
    message = r"mask_memory_mb is 7; one client's mask and its two moments take 7\.1 megabytes"
    with pytest.raises(SettingsError, match=message):
        runner.run(small(model="lenet", mask_memory_mb=7), folder)
    assert not folder.exists()
    check(small(model="lenet", mask_memory_mb=8))
    check(small(model="lenet", mask="none"))


def test_batches_of_one_sample_teach_clients_nothing() -> None:
    message = "batch-size is 1, but local-loss is on: a batch of one sample has no pair, so that "
    with pytest.raises(SettingsError, match=message):
        small(batch_size=1)
    assert small(batch_size=2).training.batch_size == 2
    assert small(batch_size=1, local_loss=False, kappa=0.0).training.batch_size == 1
    assert RunSettings.from_mapping({"batch-size": 1}).training.batch_size == 1


def test_a_projection_without_a_local_loss_is_refused() -> None:
    message = "projection-dim is 32, but with local-loss off .* loss: leave it at 64"
    with pytest.raises(SettingsError, match=message):
        small(local_loss=False, kappa=0.0, projection_dim=32)
    assert small(projection_dim=32).split.projection_dim == 32
    assert small(local_loss=False, kappa=0.0, projection_dim=64).split.projection_dim == 64


@pytest.mark.parametrize(
    ("labels", "whose"),
    [
        ([[0, 1], [1, 1], [0, 1]], "client 1 has"),
        ([[2], [1, 1], [0, 1]], "2 clients (0, 1) have"),
        ([[1, 1]] * 6, "6 clients (0, 1, 2, 3, 4, ...) have"),
    ],
)
def test_clients_of_one_class_are_warned_of(labels: list[list[int]], whose: str) -> None:
    [line] = warned(labels)
    assert line == (
        f"{whose} only one class to train on: a contrastive loss of 0, from which a client part "
        "learns nothing"
    )


def test_what_works_is_not_warned_of() -> None:
    assert warned([[0, 1], [1, 2]]) == []
    assert warned([[1, 1]], local_loss=False, kappa=0.0) == []


@pytest.mark.parametrize(
    ("kappa", "rounds", "has_none"), [(0.2, 4, True), (0.25, 4, False), (0.0, 4, False)]
)
def test_a_local_phase_without_a_round_is_warned_of(
    kappa: float, rounds: int, has_none: bool
) -> None:
    line = "kappa is 0.2, but of 4 rounds that is less than one: there is no local phase"
    assert warned([[0, 1]], kappa=kappa, rounds=rounds) == ([line] if has_none else [])


AVERAGE = "an average of client parts takes {} rounds"
PASS = "a pass through all clients takes {} rounds"
GRADIENTS = {"kappa": 0.0, "selection": "all", "server_gradient": "selected"}


@pytest.mark.parametrize(
    ("changes", "period"),
    [
        ({}, AVERAGE.format(4)),
        ({"rounds": 12, "evaluate_every": 4}, None),
        ({"rounds": 16, "kappa": 0.5, "evaluate_every": 8}, None),
        ({"rounds": 20, "kappa": 0.5, "evaluate_every": 4, "share_every": 5}, AVERAGE.format(5)),
        # A period of ten local rounds goes on in the global phase.
        ({"rounds": 20, "kappa": 0.5, "share_every": 3}, None),
        (GRADIENTS, AVERAGE.format(5) + ", 1 of them for the last gradients"),
        ({**GRADIENTS, "rounds": 30, "evaluate_every": 5}, None),
        # Four periods of four rounds in the local phase, then two of five.
        ({**GRADIENTS, "rounds": 26, "kappa": 0.62, "evaluate_every": 26}, None),
        ({**GRADIENTS, "client_weights": "relayed"}, f"{PASS.format(40)}, 8 of them for "),
        (
            {**GRADIENTS, "client_weights": "relayed", "selection": "random", "eta": 0.25},
            f"{PASS.format(34)}, 2 of them for ",
        ),
        (
            {**GRADIENTS, "client_weights": "relayed", "rounds": 120, "evaluate_every": 40},
            None,
        ),
        ({"client_weights": "relayed", "kappa": 0.0}, PASS.format(32) + ":"),
        ({"client_weights": "personal", "share_every": 1}, None),
    ],
)
def test_sharing_at_other_times_than_the_tests_and_the_end_is_warned_of(
    changes: dict[str, Any], period: str | None
) -> None:
    options = {"rounds": 11, "kappa": 0.0, "client_weights": "averaged", "share_every": 4}
    lines = warned([[0, 1]], **{**options, **changes})
    if period is None:
        assert lines == []
        return
    assert lines[-1].startswith(f"evaluate-every is {changes.get('evaluate_every', 1)}, but ")
    assert all(period in line for line in lines)


def test_what_is_cut_short_is_told_with_the_rounds_that_are_left() -> None:
    options: dict[str, Any] = {**GRADIENTS, "client_weights": "averaged", "evaluate_every": 2}
    assert warned([[0, 1]], rounds=8, **options) == []
    period = "an average of client parts takes 2 rounds, 1 of them for the last gradients"
    assert warned([[0, 1]], rounds=9, **options) == [
        f"rounds is 9, but {period}: the last one is cut short, after 1"
    ]
    options["evaluate_every"] = 3
    assert warned([[0, 1]], rounds=9, **options)[1] == (
        f"evaluate-every is 3, but {period}: a test in between is of the part that was shared last"
    )
    assert len(warned([[0, 1]], rounds=9, fraction_evaluate=0.0, **options)) == 1


@pytest.mark.parametrize("name", ["sl-basic-digits", "splitfed-digits"])
def test_configurations_that_come_with_the_package_share_when_they_test(name: str) -> None:
    config = Path(simulations.__file__).parent / "conf" / f"{name}.toml"
    settings = RunSettings.from_mapping(read_config(config))
    assert split_run_warnings(settings, Holding([[0, 1]])) == []  # type: ignore[arg-type]


def test_grids_that_come_with_the_package_share_when_they_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # data folders are looked for from there
    names = set()
    for grid in sorted((Path(simulations.__file__).parent / "conf").glob("*-grid.toml")):
        for run in read_grid(grid, Path("out")).runs:
            if run.settings.adasplit.shares_weights:
                names.add(run.method)
                assert split_run_warnings(run.settings, Holding([[0, 1]])) == []  # type: ignore[arg-type]
    assert names >= {"SL-basic", "SplitFed"}


@pytest.mark.parametrize(("share_every", "kappa"), [(1, 0.0), (3, 0.0), (2, 0.5)])
def test_the_periods_are_those_of_a_run(share_every: int, kappa: float) -> None:
    """Play a run of averaged parts in which nobody fails, and see when they are shared."""
    options = {**GRADIENTS, "client_weights": "averaged", "kappa": kappa}
    settings = small(rounds=16, share_every=share_every, **options)
    sharing, shared = Sharing(settings.adasplit, 16), []
    for server_round in range(1, 17):
        if sharing.is_over or server_round == 1:
            sharing.begin([0])
        finished = sharing.finishes(server_round)
        picks = [0] if settings.adasplit.phase_of(server_round, 16) == "global" else []
        comes_up = finished or sharing.shares(server_round, picks)
        sharing.took({0: 1}, finished=finished, shared=comes_up, picks=picks)
        if sharing.is_over:
            shared.append(server_round)
    assert shared[-1] == 16
    lines = warned([[0, 1]], rounds=16, share_every=share_every, evaluate_every=100, **options)
    full = 1 + share_every
    assert (shared[-1] - shared[-2] == full) == (lines == [])


def test_a_new_run_is_warned_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small(partitioner="classes", classes_per_client=1, num_clients=10, kappa=0.1)
    Recorder.create(tmp_path / "run", settings).close()
    lines = capsys.readouterr().err.splitlines()
    assert any(
        line.startswith("warning: 10 clients (0, 1, 2, 3, 4, ...) have only") for line in lines
    )
    assert any(line.startswith("warning: kappa is 0.1") for line in lines)
    zerofl = RunSettings.from_mapping({"partitioner": "classes", "classes-per-client": 1})
    Recorder.create(tmp_path / "zerofl", zerofl).close()
    assert "warning" not in capsys.readouterr().err
