"""Open a local folder or a hub name as tables of rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetsError

from simulations.data_settings import DataSettings
from simulations.dataset_names import DIGITS, local_folder, split_files
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.naming import looks_like, unknown_name

# Where the hub keeps its own parquet export of data sets that are defined by a script.
_PARQUET_BRANCH = "refs/convert/parquet"


@dataclass(frozen=True)
class Tables:
    """The rows of a data set.

    Parameters
    ----------
    train : datasets.Dataset
        The training split.
    test : datasets.Dataset, optional
        The test split; None when the data set has none.
    """

    train: Any
    test: Any | None


@contextmanager
def open_tables(settings: DataSettings, scratch: Path) -> Iterator[Tables]:
    """Open the train and test rows of a hub name or a local folder.

    A validation split of the data set itself is left alone: validation samples are taken from
    each client's own.

    Parameters
    ----------
    settings : DataSettings
        Only `dataset` and `dataset_config` matter.
    scratch : Path
        Existing folder for temporary files, as large as the local folder's.

    Yields
    ------
    Tables
        Valid inside the ``with`` block.

    Raises
    ------
    DataError
        If the data cannot be read or downloaded, or has no training split.
    SettingsError
        If the name is a misspelt ``digits``.
    """
    folder = local_folder(settings.dataset)
    if folder is None:
        yield _tables(_load_from_hub(settings), settings.dataset)
        return
    files = {split: [str(path) for path in paths] for split, paths in split_files(folder).items()}
    # The library converts parquet to its own cache first; we keep only our prepared arrays.
    with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as cache:
        try:
            with _no_progress_bars():
                loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=cache)
        except (OSError, ValueError, TypeError, DatasetsError) as error:
            reason = error.__cause__ or error
            raise DataError(f"the parquet files in {folder} cannot be read: {reason}") from error
        yield _tables(loaded, str(folder))


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    before = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            datasets.enable_progress_bars()


def _load_from_hub(settings: DataSettings) -> Any:
    name, config = settings.dataset, settings.dataset_config
    if "/" not in name and looks_like(name, [DIGITS]):
        raise SettingsError(unknown_name("dataset", name, [DIGITS]))
    try:
        try:
            return datasets.load_dataset(name, config)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            return datasets.load_dataset(name, data_dir=config, revision=_PARQUET_BRANCH)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise DataError(
            f"the dataset {name!r} (configuration {config or 'default'}) is no local folder and "
            f"cannot be loaded from the Hugging Face hub: {error}. Without a network, give a "
            "local folder with train-*.parquet and test-*.parquet"
        ) from error


def _tables(loaded: Any, name: str) -> Tables:
    if not isinstance(loaded, dict) or "train" not in loaded:
        splits = ", ".join(loaded) if isinstance(loaded, dict) else "no splits"
        raise DataError(f"the dataset {name} has no train split (found: {splits})")
    if len(loaded["train"]) == 0:
        raise DataError(f"the train split of {name} has no rows")
    return Tables(train=loaded["train"], test=loaded.get("test"))
