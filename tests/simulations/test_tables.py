from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from simulations.data_settings import DataSettings
from simulations.tables import open_tables
from tests.simulations.parquet_folders import picture_dataset, write_labelled_pictures
from zerofl_flwr.errors import DataError, SettingsError

TRAIN = picture_dataset([0, 1, 1], ["no", "yes"])


class Hub:
    """Stands in for `datasets.load_dataset`, and notes what it was asked for."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append((args, kwargs))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_hub_name_and_configuration_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(datasets.DatasetDict(train=TRAIN, test=TRAIN, validation=TRAIN))
    monkeypatch.setattr(datasets, "load_dataset", hub)
    settings = DataSettings(dataset="google/speech_commands", dataset_config="v0.02")
    with open_tables(settings, tmp_path) as tables:
        assert len(tables.train) == 3
        assert tables.test is not None
    assert hub.asked == [(("google/speech_commands", "v0.02"), {})]


def test_script_data_set_is_read_from_its_parquet_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(
        RuntimeError("Dataset scripts are no longer supported, but found a.py"),
        datasets.DatasetDict(train=TRAIN),
    )
    monkeypatch.setattr(datasets, "load_dataset", hub)
    settings = DataSettings(dataset="owner/a", dataset_config="big")
    with open_tables(settings, tmp_path) as tables:
        assert tables.test is None
    assert hub.asked[1] == (
        ("owner/a",),
        {"data_dir": "big", "revision": "refs/convert/parquet"},
    )


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'owner/a' on the Hub"),
        ValueError("BuilderConfig 'x' not found"),
        RuntimeError("something else"),
        datasets.exceptions.DatasetGenerationError("broken"),
    ],
)
def test_failed_download_suggests_a_local_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", Hub(error))
    with (
        pytest.raises(DataError, match=r"'owner/a' .*Without a network, give a local folder") as e,
        open_tables(DataSettings(dataset="owner/a"), tmp_path),
    ):
        pass
    assert str(error) in str(e.value)


def test_misspelt_digits_does_not_ask_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub()
    monkeypatch.setattr(datasets, "load_dataset", hub)
    with (
        pytest.raises(SettingsError, match="unknown dataset 'digit'; did you mean 'digits'"),
        open_tables(DataSettings(dataset="digit"), tmp_path),
    ):
        pass
    assert hub.asked == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (datasets.DatasetDict(test=TRAIN), r"no train split \(found: test\)"),
        (TRAIN, r"no train split \(found: no splits\)"),
        (datasets.DatasetDict(train=TRAIN.select([])), "has no rows"),
    ],
)
def test_missing_training_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: object, message: str
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", Hub(answer))
    with (
        pytest.raises(DataError, match=message),
        open_tables(DataSettings(dataset="owner/a"), tmp_path),
    ):
        pass


def test_local_folder_is_read_and_nothing_stays_in_scratch(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    write_labelled_pictures(folder, "train", [3, 1, 2])
    write_labelled_pictures(folder, "test", [1])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with open_tables(DataSettings(dataset=str(folder)), scratch) as tables:
        assert list(tables.train["label"]) == [3, 1, 2]
        assert tables.test is not None
        assert list(tables.test["label"]) == [1]
    assert list(scratch.iterdir()) == []
    assert not datasets.are_progress_bars_disabled()


def test_broken_parquet_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "train-00000-of-00001.parquet").write_bytes(b"no parquet")
    with (
        pytest.raises(DataError, match=r"the parquet files in .*own cannot be read: .*Parquet"),
        open_tables(DataSettings(dataset=str(folder)), tmp_path),
    ):
        pass
