"""What a ``dataset`` setting names: the embedded digits, a local folder, or a name on the hub."""

from __future__ import annotations

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
        If it is written like a path but is no folder.
    """
    if dataset == DIGITS:
        return None
    folder = Path(dataset).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if dataset.startswith((".", "~")) or dataset.count("/") > 1 or folder.is_absolute():
        raise DataError(f"the dataset folder {dataset} does not exist (seen from {Path.cwd()})")
    return None


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
