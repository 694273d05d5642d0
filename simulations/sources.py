"""Decode a data set once into arrays that every process can memory-map."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from simulations.audio import SIDE, audio_images, require_audio
from simulations.columns import (
    find_label_column,
    find_sample_column,
    number_ids,
    number_labels,
)
from simulations.data_settings import DataSettings
from simulations.dataset_names import DIGITS
from simulations.images import common_shape, image_arrays
from simulations.standardise import channel_statistics
from simulations.tables import Tables, open_tables
from zerofl_flwr.errors import DataError

DIGITS_TEST_FRACTION = 0.2
TEST_FRACTION = 0.1
_TEST_SEED = 0  # not the run's seed: runs with different seeds share one test set


def build_source(settings: DataSettings, folder: Path) -> dict[str, Any]:
    """Decode a data set into a folder.

    Parameters
    ----------
    settings : DataSettings
        Only the data set, the columns and the audio features matter.
    folder : Path
        An existing, empty folder.

    Returns
    -------
    dict of str to JSON values
        What `simulations.preparation.prepare_source` promises as meta data.

    Raises
    ------
    DataError
        If the data cannot be read.
    """
    if settings.dataset == DIGITS:
        return _build_digits(folder)
    with open_tables(settings, folder) as tables:
        return _build_tables(tables, settings, folder)


def hold_out(labels: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Choose rows to hold out, the same share of each class.

    Parameters
    ----------
    labels : int64 array (N,)
        Class of each row.
    fraction : float
        Share to hold out of each class, rounded to whole rows.
    seed : int
        Seed of the choice.

    Returns
    -------
    bool array (N,)
        True where a row is held out.

    Raises
    ------
    DataError
        If that would hold out nothing.
    """
    rng = np.random.default_rng(seed)
    held = np.zeros(labels.size, dtype=np.bool_)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        held[rows[: round(fraction * rows.size)]] = True
    if not held.any():
        raise DataError(f"{labels.size} samples are too few to hold out {fraction:.0%} for testing")
    return held


def _build_digits(folder: Path) -> dict[str, Any]:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = bundle.images.astype(np.uint8)[:, np.newaxis]
    labels = bundle.target.astype(np.int64)
    held = hold_out(labels, DIGITS_TEST_FRACTION, _TEST_SEED)
    np.save(folder / "images.npy", images)
    return _finish(folder, images, labels, held, tuple("0123456789"), {})


def _build_tables(tables: Tables, settings: DataSettings, folder: Path) -> dict[str, Any]:
    sample_column, kind = find_sample_column(tables.train.features, settings)
    label_column = find_label_column(tables.train.features, settings)
    splits = [tables.train] if tables.test is None else [tables.train, tables.test]
    for split in splits[1:]:
        for column in (sample_column, label_column):
            if column not in split.column_names:
                raise DataError(f"the test split lacks the column {column!r}")
    values = list(chain.from_iterable(split[label_column] for split in splits))
    labels, names = number_labels(values, tables.train.features[label_column], label_column)
    if tables.test is None:
        held = hold_out(labels, TEST_FRACTION, _TEST_SEED)
    else:
        held = np.arange(labels.size) >= len(tables.train)
    images = _decode(splits, sample_column, kind, settings, folder / "images.npy")
    columns = _save_ids(tables.train, {sample_column, label_column}, folder)
    return _finish(folder, images, labels, held, names, {label_column: "labels", **columns})


def _decode(
    splits: list[Any], column: str, kind: str, settings: DataSettings, path: Path
) -> NDArray[Any]:
    """Decode the sample column of all splits into one array file, chunk by chunk."""
    total = sum(len(split) for split in splits)
    chunks: Iterable[NDArray[Any]]
    if kind == "image":
        channels, height, width = common_shape(_cells(splits, column, datasets.Image))
        chunks = image_arrays(_cells(splits, column, datasets.Image), channels)
        shape, dtype = (total, channels, height, width), "uint8"
    else:
        require_audio()
        chunks = audio_images(_cells(splits, column, datasets.Audio), settings.audio_features)
        shape, dtype = (total, 1, SIDE, SIDE), "float32"
    images = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    start = 0
    for chunk in chunks:
        images[start : start + len(chunk)] = chunk
        start += len(chunk)
    images.flush()
    return images


def _cells(splits: list[Any], column: str, feature: Any) -> Iterator[Any]:
    """Yield the encoded files of a column, row by row."""
    for split in splits:
        encoded = split.select_columns([column]).cast_column(column, feature(decode=False))
        for batch in encoded.iter(batch_size=512):
            yield from batch[column]


def _save_ids(train: Any, skip: set[str], folder: Path) -> dict[str, str]:
    """Save the numbered values of all columns that clients could be divided by."""
    found: dict[str, str] = {}
    for name, feature in train.features.items():
        if name in skip:
            continue
        if not isinstance(feature, datasets.Value | datasets.ClassLabel):
            found[name] = f"column {name!r} must hold integers or texts"
            continue
        try:
            codes = number_ids(list(train[name]), f"column {name!r}")
        except DataError as error:
            found[name] = str(error)
            continue
        found[name] = f"ids_{len(found)}"
        np.save(folder / f"{found[name]}.npy", codes)
    return found


def _finish(
    folder: Path,
    images: NDArray[Any],
    labels: NDArray[np.int64],
    held: NDArray[np.bool_],
    names: tuple[str, ...],
    columns: dict[str, str],
) -> dict[str, Any]:
    train_rows = np.flatnonzero(~held).astype(np.int64)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "train_rows.npy", train_rows)
    np.save(folder / "test_rows.npy", np.flatnonzero(held).astype(np.int64))
    mean, std = channel_statistics(images.__getitem__, train_rows)
    return {"class_names": names, "mean": mean, "std": std, "id_columns": columns}
