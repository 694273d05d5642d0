from __future__ import annotations

from pathlib import Path

import pytest

from simulations.dataset_names import absolute_names, local_folder, split_files
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


def test_absolute_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert absolute_names(["here"]) == f"{tmp_path}/here"
    assert absolute_names(["digits"]) == "digits"
    assert (
        absolute_names(["digits", "./here", "owner/name"]) == f"digits,{tmp_path}/here,owner/name"
    )
    with pytest.raises(DataError, match="does not exist"):
        absolute_names(["digits", "./nowhere"])


def test_a_comma_in_a_path_is_in_nobodys_way_but_that_of_several_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "2024, spring" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    assert absolute_names(["here"]) == str(folder)
    assert local_folder(str(folder)) == folder
    with pytest.raises(DataError, match="2024, spring/here has a comma in its path"):
        absolute_names(["digits", "here"])


@pytest.mark.parametrize("dataset", ["mnist,digits", "./a,./b", "owner/a,owner/b"])
def test_several_names_for_one_data_set_are_explained(dataset: str) -> None:
    with pytest.raises(DataError, match="with commas between, go with partitioner 'dataset'"):
        local_folder(dataset)
