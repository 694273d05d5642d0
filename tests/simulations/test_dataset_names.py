from __future__ import annotations

from pathlib import Path

import pytest

from simulations.dataset_names import local_folder, split_files
from zerofl_flwr.errors import DataError


def test_hub_names_are_told_from_paths(tmp_path: Path) -> None:
    assert local_folder("uoft-cs/cifar10") is None
    assert local_folder("mnist") is None
    assert local_folder(str(tmp_path)) == tmp_path
    for path in ("./nowhere", "../nowhere", "~/nowhere", str(tmp_path / "nowhere"), "a/b/c"):
        with pytest.raises(DataError, match="does not exist"):
            local_folder(path)


def test_the_embedded_digits_win_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert local_folder("digits") is None
    assert local_folder("./digits") == tmp_path / "digits"


def test_split_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no train-\*\.parquet in"):
        split_files(tmp_path)
    for name in ("train-00001-of-00002.parquet", "train-00000-of-00002.parquet", "other.parquet"):
        (tmp_path / name).touch()
    found = split_files(tmp_path)
    assert list(found) == ["train"]
    assert [path.name[:11] for path in found["train"]] == ["train-00000", "train-00001"]
