"""Find the sample and label columns of a table, and number the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from simulations.data_settings import DataSettings
from zerofl_flwr.errors import DataError
from zerofl_flwr.naming import unknown_name

_IMAGE_NAMES = ("image", "img")
_AUDIO_NAMES = ("audio",)
# In order of preference: CIFAR-100 has fine and coarse labels, FEMNIST calls them characters.
_LABEL_NAMES = ("label", "labels", "fine_label", "character", "target", "class")

NO_ID = -1
"""Stands for the id of a row that has none, such as the speaker of recorded silence."""

Features = Mapping[str, Any]


def find_sample_column(features: Features, settings: DataSettings) -> tuple[str, str]:
    """Find the column that holds the samples.

    Parameters
    ----------
    features : mapping of str to datasets feature
        The table's columns and their types.
    settings : DataSettings
        Its `image_column` or `audio_column` settles the question.

    Returns
    -------
    tuple of str
        Name of the column, and ``"image"`` or ``"audio"``.

    Raises
    ------
    DataError
        If there is none, or several.
    """
    if settings.image_column:
        return _existing(settings.image_column, features, "image column"), "image"
    if settings.audio_column:
        return _existing(settings.audio_column, features, "audio column"), "audio"
    for kind, feature_type, names in (
        ("image", datasets.Image, _IMAGE_NAMES),
        ("audio", datasets.Audio, _AUDIO_NAMES),
    ):
        found = [name for name, feature in features.items() if isinstance(feature, feature_type)]
        if not found:
            # Parquet written without the hub's metadata: encoded bytes under a usual name.
            found = [name for name in names if name in features and _holds_bytes(features[name])]
        if len(found) > 1:
            raise DataError(
                f"several {kind} columns ({', '.join(found)}); choose one with {kind}_column"
            )
        if found:
            return found[0], kind
    raise DataError(
        f"no image or audio column among {_listed(features)}; "
        "name one with image_column or audio_column"
    )


def find_label_column(features: Features, settings: DataSettings) -> str:
    """Find the column that holds the class labels.

    Parameters
    ----------
    features : mapping of str to datasets feature
        The table's columns and their types.
    settings : DataSettings
        Its `label_column` settles the question.

    Returns
    -------
    str
        Name of the column.

    Raises
    ------
    DataError
        If there is none.
    """
    if settings.label_column:
        return _existing(settings.label_column, features, "label column")
    for name in _LABEL_NAMES:
        if name in features:
            return name
    typed = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if len(typed) == 1:
        return typed[0]
    raise DataError(f"no label column among {_listed(features)}; name it with label_column")


def number_labels(
    values: Sequence[object], feature: object, column: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Give the labels numbers from 0 to C-1.

    Parameters
    ----------
    values : sequence of int, str or bool, length N
        The labels of all rows.
    feature : datasets feature
        The column's type. A ``ClassLabel`` fixes the classes and their order, so that a class
        without samples keeps its number; otherwise the sorted values are the classes.
    column : str
        Name of the column, for messages.

    Returns
    -------
    tuple of (int64 array (N,), tuple of C str)
        Class numbers, and the classes' names.

    Raises
    ------
    DataError
        If a label is missing, out of range, or neither a text nor an integer.
    """
    if isinstance(feature, datasets.ClassLabel):
        names = tuple(str(name) for name in feature.names)
        if any(value is None for value in values):
            raise DataError(f"label column {column!r} has rows without a label")
        codes = np.asarray(values, dtype=np.int64)
        wrong = np.flatnonzero((codes < 0) | (codes >= len(names)))
        if wrong.size:
            raise DataError(
                f"label column {column!r}: row {wrong[0]} has the label {codes[wrong[0]]}, "
                f"but there are {len(names)} classes"
            )
        return codes, names
    distinct, codes = rank_values(values, f"label column {column!r}")
    return codes, tuple(str(value) for value in distinct)


def rank_values(values: Sequence[object], what: str) -> tuple[Sequence[object], NDArray[np.int64]]:
    """Replace values by their place among the sorted distinct values.

    Parameters
    ----------
    values : sequence of int, str or bool, length N
        The values; all integers or all texts.
    what : str
        What they are, for messages.

    Returns
    -------
    tuple of (list, int64 array (N,))
        The sorted distinct values, and each value's place among them.

    Raises
    ------
    DataError
        If a value is missing, or neither a text nor an integer.
    """
    if any(value is None for value in values):
        raise DataError(f"{what} has missing values")
    if not (
        all(isinstance(value, str) for value in values)
        or all(isinstance(value, int) for value in values)
    ):
        kinds = sorted({type(value).__name__ for value in values})
        raise DataError(f"{what} must hold integers or texts, found {', '.join(kinds)}")
    distinct = sorted(set(values))  # type: ignore[type-var]
    place = {value: index for index, value in enumerate(distinct)}
    return distinct, np.asarray([place[value] for value in values], dtype=np.int64)


def number_ids(values: Sequence[object], what: str) -> NDArray[np.int64]:
    """Replace ids by their place among the sorted distinct ids.

    Parameters
    ----------
    values : sequence of int, str, bool or None, length N
        The ids; None where a row has none.
    what : str
        What they are, for messages.

    Returns
    -------
    int64 array (N,)
        Each id's place, `NO_ID` where there is none.

    Raises
    ------
    DataError
        If no row has an id, or an id is neither a text nor an integer.
    """
    codes = np.full(len(values), NO_ID, dtype=np.int64)
    given = [row for row, value in enumerate(values) if value is not None]
    if not given:
        raise DataError(f"{what} has missing values only")
    codes[given] = rank_values([values[row] for row in given], what)[1]
    return codes


def _existing(name: str, features: Features, kind: str) -> str:
    if name not in features:
        raise DataError(unknown_name(kind, name, features))
    return name


def _holds_bytes(feature: object) -> bool:
    if isinstance(feature, Mapping):
        return "bytes" in feature or "path" in feature
    return isinstance(feature, datasets.Value) and feature.dtype in ("binary", "large_binary")


def _listed(features: Features) -> str:
    return ", ".join(f"{name!r}" for name in features) or "no columns at all"
