"""What a ``dataset`` setting names: the embedded digits, a local folder, or a name on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerofl_flwr.errors import DataError

DIGITS = "digits"


def local_folder(dataset: str) -> Path | None:
    """Return the folder that a `dataset` setting points at, absolute; None for any other name.

    ``digits`` is the embedded data set, also where a folder of that name is at hand; write
    ``./digits`` for the folder.

    Raises
    ------
    DataError
        If it is written like a path but is no folder, or like several names.
    """
    if dataset == DIGITS:
        return None
    folder = Path(dataset).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if "," in dataset:
        raise DataError(
            f"there is no dataset folder {dataset} (seen from {Path.cwd()}); several data sets, "
            "with commas between, go with partitioner 'dataset'"
        )
    if dataset.startswith((".", "~")) or dataset.count("/") > 1 or folder.is_absolute():
        raise DataError(f"the dataset folder {dataset} does not exist (seen from {Path.cwd()})")
    return None


def absolute_names(names: Sequence[str]) -> str:
    """Write data sets as a `dataset` setting that does not depend on the working directory.

    Parameters
    ----------
    names : sequence of str
        Each as for `local_folder`.

    Returns
    -------
    str
        The names, or absolute paths of local folders, with commas between.

    Raises
    ------
    DataError
        If a path has no folder, or one of several has a comma.
    """
    absolute = [str(local_folder(name) or name) for name in names]
    for name in absolute:
        if "," in name and len(absolute) > 1:
            raise DataError(
                f"the dataset folder {name} has a comma in its path, which would part it in two; "
                "reach it by another path"
            )
    return ",".join(absolute)


def split_files(folder: Path) -> dict[str, list[Path]]:
    """Find the parquet files of the train split and, if there is one, the test split.

    Raises
    ------
    DataError
        If there are none for training.
    """
    found = {split: sorted(folder.glob(f"{split}-*.parquet")) for split in ("train", "test")}
    if not found["train"]:
        raise DataError(f"there is no train-*.parquet in {folder}")
    return {split: paths for split, paths in found.items() if paths}
