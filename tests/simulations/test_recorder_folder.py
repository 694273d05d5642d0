"""Who may open the folder of a run, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations import recorder as recorder_module
from simulations.recorder import Recorder
from simulations.settings import read_config
from tests.simulations.played_rounds import contents, play, table
from tests.simulations.small_runs import small
from zerofl_flwr.errors import DataError, SettingsError

pytestmark = pytest.mark.usefixtures("no_plots")


def test_nobody_else_opens_a_folder_while_a_run_writes_it(tmp_path: Path) -> None:
    message = f"{tmp_path} is being written by another run"
    recorder = Recorder.create(tmp_path, small())
    play(recorder, 1, 2)
    before = contents(tmp_path)
    with pytest.raises(SettingsError, match=message):
        Recorder.resume(tmp_path)
    with pytest.raises(SettingsError, match=message):
        Recorder.create(tmp_path, small(seed=4), overwrite=True)
    assert contents(tmp_path) == before
    recorder.close()
    resumed = Recorder.resume(tmp_path)
    with pytest.raises(SettingsError, match=message):
        Recorder.resume(tmp_path)
    play(resumed, 3, 3)  # its last round ends the run
    recorder.close()
    Recorder.create(tmp_path, small(), overwrite=True)


def test_a_folder_that_could_not_be_opened_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "load_data", lambda settings: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Recorder.create(tmp_path, small())
    with pytest.raises(DataError, match="there is no checkpoint"):
        Recorder.resume(tmp_path)
    Recorder.create(tmp_path, small(), overwrite=True)


def test_a_finished_run_is_not_resumed(tmp_path: Path) -> None:
    play(Recorder.create(tmp_path, small()), 1, 3)
    with pytest.raises(SettingsError, match="is finished: all 3 rounds"):
        Recorder.resume(tmp_path)
    assert table(tmp_path, "rounds")["round"].tolist() == [1, 2, 3]


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no run: it has no config\.toml"):
        Recorder.resume(tmp_path)
    Recorder.create(tmp_path, small()).close()
    with pytest.raises(DataError, match="there is no checkpoint"):
        Recorder.resume(tmp_path)


def test_resuming_is_suggested_where_it_works(tmp_path: Path) -> None:
    recorder = Recorder.create(tmp_path, small())
    recorder.close()
    other = "choose another folder, or pass --overwrite"
    with pytest.raises(SettingsError, match=other):
        Recorder.create(tmp_path, small())
    play(recorder, 1, 2)
    with pytest.raises(SettingsError, match="continue it with --resume, or pass --overwrite"):
        Recorder.create(tmp_path, small())
    play(recorder, 3, 3)
    with pytest.raises(SettingsError, match=other):
        Recorder.create(tmp_path, small())


@pytest.mark.parametrize("name", ["config.toml", "rounds.csv", "model.npz", "plots/mine.png"])
def test_a_folder_that_holds_anything_of_a_run_is_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / name).write_text("precious")
    with pytest.raises(SettingsError, match=f"holds a run already .{Path(name).name}."):
        Recorder.create(tmp_path, small())
    assert [path.name for path in tmp_path.rglob("*.*")] == [Path(name).name]
    assert (tmp_path / name).read_text() == "precious"


def test_overwriting_leaves_nothing_of_the_old_run_and_all_of_the_rest(tmp_path: Path) -> None:
    play(Recorder.create(tmp_path, small()), 1, 3)
    (tmp_path / "flower.log").write_text("old")
    (tmp_path / "plots" / "accuracy.png").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    Recorder.create(tmp_path, small(seed=4), overwrite=True)
    names = sorted(path.name for path in tmp_path.rglob("*.*"))
    assert names == [".lock", "config.toml", "environment.json", "notes.txt", "partitions.csv"]
    assert read_config(tmp_path / "config.toml")["seed"] == 4
