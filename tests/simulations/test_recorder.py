"""The folder of a run, driven by hand: a report a round, no training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.common import Scalar
from rich.console import Console

from simulations import recorder as recorder_module
from simulations.checkpoint import Checkpoint
from simulations.compute import NO_COMPUTE
from simulations.recorder import Recorder
from simulations.settings import RunSettings, read_config
from simulations.zerofl_parts import initial_arrays
from tests.simulations.parquet_folders import pictures, write_split
from tests.simulations.played_rounds import contents, play, play_round, report_of, table
from tests.simulations.small_runs import arrays_of, small
from zerofl_flwr.errors import RoundFailedError, SettingsError

pytestmark = pytest.mark.usefixtures("no_plots")


def test_a_new_folder_describes_the_run(tmp_path: Path) -> None:
    settings = small(learning_rate_end=0.02)
    recorder = Recorder.create(tmp_path / "deep" / "run", settings)
    folder = recorder.folder
    assert folder == tmp_path / "deep" / "run"
    assert RunSettings.from_mapping(read_config(folder / "config.toml")) == settings
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["flwr"].startswith("1.")
    assert environment["cpus"] >= 1
    partitions = table(folder, "partitions")
    assert partitions.columns.tolist() == ["partition_id", *map(str, range(10))]
    assert partitions["partition_id"].tolist() == list(range(8))
    # 1797 digits, of which a fifth is the test set.
    assert partitions.drop(columns="partition_id").to_numpy().sum() == 1438
    assert recorder.rounds_done == 0


def test_samples_that_no_client_gets_are_counted_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns: dict[str, list[object]] = {
        "image": list(pictures(20)),
        "label": [0, 1] * 10,
        "speaker [id]": ["zoe", "ann", "zoe", None] * 5,
    }
    for split in ("train", "test"):
        write_split(tmp_path / "own", split, columns)
    settings = small(
        dataset=str(tmp_path / "own"), num_clients=2, clients_per_round=2, partitioner="natural"
    )
    Recorder.create(tmp_path / "by-label", settings)
    assert "left out" not in capsys.readouterr().err
    by_speaker = replace(settings, data=replace(settings.data, partition_by="speaker [id]"))
    Recorder.create(tmp_path / "by-speaker", by_speaker)
    warning = "warning: 5 training samples have no 'speaker [id]' and are left out"
    assert warning in capsys.readouterr().err.splitlines()
    partitions = table(tmp_path / "by-speaker", "partitions")
    assert partitions[["0", "1"]].to_numpy().tolist() == [[0, 5], [10, 0]]


def test_a_relative_folder_is_resolved_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Recorder.create(Path("run"), small()).folder == tmp_path / "run"


def test_a_rounds_figures_are_in_all_tables(tmp_path: Path) -> None:
    settings = small(learning_rate=0.1, learning_rate_end=0.025)
    recorder = Recorder.create(tmp_path, settings)
    recorder.tested(0, 2.5, {"accuracy": 0.125})
    play_round(recorder, 1)
    play_round(recorder, 2, tested=False)
    rounds = table(tmp_path, "rounds")
    assert rounds["round"].tolist() == [0, 1, 2]
    assert rounds.iloc[0].dropna().to_dict() == {
        "round": 0,
        "loss": 2.5,
        "accuracy": 0.125,
        "clients": 0,
        "replies": 0,
        "failures": 0,
        "downlink_bytes": 0,
        "uplink_bytes": 0,
        "downlink_bytes_counted": 0,
        "uplink_bytes_counted": 0,
        "test_downlink_bytes": 0,
        "test_uplink_bytes": 0,
        **NO_COMPUTE,
    }
    assert rounds.iloc[1].dropna().to_dict() == pytest.approx(
        {
            "round": 1,
            "loss": 1.5,
            "accuracy": 0.5,
            "train_loss": (100 * 0.25 + 300 * 0.75) / 400,
            "clients": 3,
            "replies": 2,
            "failures": 1,
            "sparsity": 0.825,  # on its way from 0.3 to 0.9
            "mask_ratio": 0.2,
            "learning_rate": 0.1,
            "downlink_bytes": 15000,
            "uplink_bytes": 4000,
            "downlink_bytes_counted": 12000,
            "uplink_bytes_counted": 800,
            "test_downlink_bytes": 0,
            "test_uplink_bytes": 0,
            "train_seconds": 2.0,
            "round_seconds": 2.5,
            "nonzero_ratio": 0.25,
            # 400 samples of 8 x 8 pixels. The first layer takes 64 * 9 * 16 multiply-adds, the last
            # 640. Of 4608 and 32768 masked weights 807 and 5735 are kept, the former at 64 places:
            # 57,383 together, and as many for the inputs' gradients. The weights' gradients take
            # 0.175 of 327,680, the dense layers' once more, and the last layer's inputs 640.
            "client_forward_ops": 400 * (9216 + 640 + 57_383),
            "client_ops": 400 * (2 * 9216 + 3 * 640 + 2 * 57_383 + 57_344),
            "server_forward_ops": 0,
            "server_ops": 0,
        }
    )
    assert rounds["learning_rate"].tolist()[2] == pytest.approx(0.05)
    assert rounds["mask_overlap"].tolist()[2] == 0.5
    assert rounds[["loss", "accuracy"]].iloc[2].isna().all()
    clients = table(tmp_path, "clients")
    assert clients["partition_id"].tolist() == [2, 5, 6] * 2
    assert clients["failure"].fillna("").tolist() == ["", "", "client 6: out of memory"] * 2
    traffic = table(tmp_path, "traffic")
    assert traffic["partition_id"].tolist() == [2, 5, 6] * 2
    assert traffic["up_weights"].tolist() == [900, 0, 0] * 2
    layers = table(tmp_path, "layers")
    assert layers["layer"].tolist() == ["fc1.weight"] * 2
    assert layers["zero_overlap"].tolist() == [0.75, 0.75]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert lines[1]["accuracy"] is None
    assert [client["partition_id"] for client in lines[0]["clients"]] == [2, 5, 6]
    assert lines[0]["layers"][0]["mask_overlap"] is None


def test_clients_own_tests_have_their_columns(tmp_path: Path) -> None:
    recorder = Recorder.create(tmp_path, small())
    recorder.aggregated(report_of(recorder.settings, 1))
    sizes: dict[str, Scalar] = {"evaluation_downlink_bytes": 700, "evaluation_uplink_bytes": 70}
    recorder.tested_by_clients(0.5, {"client_accuracy": 0.25, **sizes})
    recorder.finish_round(1, list, dict)
    play_round(recorder, 2)
    rounds = table(tmp_path, "rounds")
    assert rounds["client_loss"].tolist()[0] == 0.5
    assert rounds["client_accuracy"].tolist()[0] == 0.25
    assert rounds["test_downlink_bytes"].tolist() == [700, 0]
    assert rounds["test_uplink_bytes"].tolist() == [70, 0]
    # What one round was told is gone in the next.
    assert rounds[["client_loss", "client_accuracy"]].iloc[1].isna().all()


def test_one_line_a_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder.create(tmp_path, small())
    recorder.console = Console(width=200)
    seen: list[int] = []
    recorder.on_round = seen.append
    recorder.tested(0, 2.5, {"accuracy": 0.125})
    play_round(recorder, 1)
    play_round(recorder, 2, tested=False)
    first, second, third = (" ".join(s.split()) for s in capsys.readouterr().out.splitlines())
    assert first == "initial model: accuracy 12.5 % loss 2.500"
    traffic = "up 0.00 MB down 0.01 MB 2.5 s failures 1"
    assert second == f"round 1/3 accuracy 50.0 % loss 1.500 {traffic}"
    assert third == f"round 2/3 not tested {traffic}"
    assert seen == [1, 2]


def test_the_last_round_leaves_the_final_files(tmp_path: Path) -> None:
    recorder = Recorder.create(tmp_path, small())
    play(recorder, 1, 2)
    assert not (tmp_path / "model.npz").exists()
    play(recorder, 3, 3)
    with np.load(tmp_path / "model.npz") as model:
        assert list(model)[:2] == ["conv1.weight", "conv1.bias"]
        assert np.array_equal(model["conv1.bias"], initial_arrays(small())[1] + np.float32(3))
    with np.load(tmp_path / "zero_positions.npz") as zeros:
        assert zeros["rounds"].tolist() == [1, 2, 3]
        assert zeros["fc1.weight/kept"].tolist() == [[128], [144], [144]]


@pytest.mark.parametrize(
    ("every", "saved"), [(1, [1, 2, 3]), (2, [2, 3]), (5, [3]), (0, [])], ids=str
)
def test_checkpoints_come_every_so_many_rounds_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, saved: list[int]
) -> None:
    numbers: list[int] = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, path: numbers.append(self.server_round))
    play(Recorder.create(tmp_path, small(checkpoint_every=every)), 1, 3)
    assert numbers == saved


def test_a_strategy_that_does_not_report_is_an_error(tmp_path: Path) -> None:
    recorder = Recorder.create(tmp_path, small())
    with pytest.raises(RoundFailedError, match="round 1 ended without a report"):
        recorder.finish_round(1, list, dict)


def test_a_resumed_recorder_ends_as_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(checkpoint_every=2)
    unbroken = Recorder.create(tmp_path / "unbroken", settings)
    unbroken.tested(0, 2.5, {"accuracy": 0.125})
    play(unbroken, 1, 3)
    broken = Recorder.create(tmp_path / "broken", settings)
    broken.tested(0, 2.5, {"accuracy": 0.125})
    play(broken, 1, 2)
    # A round after the checkpoint, killed while it was written.
    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "save_npz", lambda path, arrays: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            play(broken, 3, 3)
    broken.close()
    assert table(broken.folder, "rounds")["round"].tolist() == [0, 1, 2, 3]
    resumed = Recorder.resume(tmp_path / "broken")
    assert (resumed.rounds_done, resumed.settings) == (2, settings)
    assert table(resumed.folder, "rounds")["round"].tolist() == [0, 1, 2]
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.state["wrapped/x"].tolist() == [2]
    play(resumed, 3, 3)
    expected, found = contents(unbroken.folder), contents(resumed.folder)
    for name in ("rounds.csv", "clients.csv", "layers.csv", "metrics.jsonl", "config.toml"):
        assert found[name] == expected[name], name
    for name in ("model.npz", "zero_positions.npz", "checkpoint.npz"):
        assert arrays_of(resumed.folder / name) == arrays_of(unbroken.folder / name)


def test_a_run_killed_between_its_results_and_its_last_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder.create(tmp_path, small())
    play(recorder, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", lambda self, path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            play(recorder, 3, 3)
    recorder.close()
    results = arrays_of(tmp_path / "model.npz"), arrays_of(tmp_path / "zero_positions.npz")
    resumed = Recorder.resume(tmp_path)
    assert resumed.rounds_done == 2
    play(resumed, 3, 3)
    assert results == (
        arrays_of(tmp_path / "model.npz"),
        arrays_of(tmp_path / "zero_positions.npz"),
    )


def test_a_picture_that_fails_is_a_warning_and_the_run_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        assert (folder / "model.npz").exists()
        assert Checkpoint.load(folder / "checkpoint.npz").server_round == 3
        raise ValueError("no [font] in sight")

    monkeypatch.setattr(recorder_module, "write_plots", fail)
    recorder = Recorder.create(tmp_path, small())
    seen: list[int] = []
    recorder.on_round = seen.append
    play(recorder, 1, 3)
    assert seen == [1, 2, 3]
    errors = capsys.readouterr().err.splitlines()
    assert "warning: ValueError: no [font] in sight" in errors
    assert errors[-1].startswith("round 3/3")
    with pytest.raises(SettingsError, match="is finished: all 3 rounds"):
        Recorder.resume(tmp_path)
