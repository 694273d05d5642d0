"""Join data sets, or the first classes of one, to a single table of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.conform import conform, conformed_shape
from simulations.data_settings import DataSettings
from simulations.prepared import Prepared, prepare
from simulations.standardise import channel_statistics
from zerofl_flwr.errors import DataError


def prepare_joined(settings: DataSettings, sources: Sequence[Prepared]) -> Prepared:
    """Join data sets, or find them already joined.

    Parameters
    ----------
    settings : DataSettings
        The data sets' names, `classes`, `image_size` and `image_channels` matter.
    sources : sequence of Prepared
        One for each data set, from `simulations.preparation.prepare_source`.

    Returns
    -------
    Prepared
        As a source, but without ``images``. Rows are numbered through all sources in turn;
        ``labels`` (N,) covers all of them, ``train_rows`` and ``test_rows`` those of the classes
        that are kept. ``datasets`` (N,) int64 is each row's data set. Meta data: ``class_names``,
        plain numbers where the data sets call their classes differently; ``mean`` and ``std`` of
        each data set and channel over its training rows, after `simulations.conform.conform`; and
        ``id_columns``, empty for several data sets.

    Raises
    ------
    DataError
        If a data set has fewer classes than asked for or no samples of them, or the images have
        not one shape.
    """
    identity = {
        "sources": [source.key for source in sources],
        "classes": settings.classes,
        "image_size": settings.image_size,
        "image_channels": settings.image_channels,
    }
    return prepare("joined", identity, partial(_build, settings, sources))


def _build(settings: DataSettings, sources: Sequence[Prepared], folder: Path) -> dict[str, Any]:
    _check_one_shape(settings, sources)
    sizes = [len(source.arrays["labels"]) for source in sources]
    starts = np.cumsum([0, *sizes])
    train, test, mean, std = [], [], [], []
    for name, source, start in zip(settings.datasets, sources, starts[:-1], strict=True):
        rows = {
            split: _rows_of_first_classes(source, f"{split}_rows", settings.classes, name)
            for split in ("train", "test")
        }
        train.append(start + rows["train"])
        test.append(start + rows["test"])
        statistics = channel_statistics(partial(_images, settings, source), rows["train"])
        mean.append(statistics[0])
        std.append(statistics[1])
    np.save(folder / "labels.npy", np.concatenate([source.arrays["labels"] for source in sources]))
    np.save(folder / "train_rows.npy", np.concatenate(train).astype(np.int64))
    np.save(folder / "test_rows.npy", np.concatenate(test).astype(np.int64))
    np.save(folder / "datasets.npy", np.repeat(np.arange(len(sources), dtype=np.int64), sizes))
    names = _class_names([source.meta["class_names"] for source in sources])
    return {
        "class_names": names[: settings.classes],
        "mean": mean,
        "std": std,
        "id_columns": _copy_ids(sources[0], folder) if len(sources) == 1 else {},
    }


def _check_one_shape(settings: DataSettings, sources: Sequence[Prepared]) -> None:
    shapes: dict[str, str] = {}
    for name, source in zip(settings.datasets, sources, strict=True):
        images = source.arrays["images"]
        try:
            shape = conformed_shape(images, settings.image_size, settings.image_channels)
        except DataError as error:
            raise DataError(f"data set {name}: {error}") from error
        shapes[name] = "x".join(map(str, shape))
    if len(set(shapes.values())) > 1:
        raise DataError(
            "the data sets have images of different shapes, channels first: "
            + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            + "; bring them together with image_size and image_channels"
        )


def _rows_of_first_classes(
    source: Prepared, split: str, classes: int | None, name: str
) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = np.asarray(source.arrays[split])
    if classes is None:
        return rows
    known = len(source.meta["class_names"])
    if classes > known:
        raise DataError(f"classes is {classes}, but data set {name} has {known} classes")
    kept: NDArray[np.int64] = rows[source.arrays["labels"][rows] < classes]
    if kept.size == 0:
        raise DataError(
            f"no {split.removesuffix('_rows')} sample of {name} is of its first {classes} classes"
        )
    return kept


def _images(settings: DataSettings, source: Prepared, rows: NDArray[np.int64]) -> NDArray[Any]:
    return conform(source.arrays["images"][rows], settings.image_size, settings.image_channels)


def _class_names(names: list[list[str]]) -> list[str]:
    if all(other == names[0] for other in names):
        return names[0]
    return [str(number) for number in range(max(map(len, names)))]


def _copy_ids(source: Prepared, folder: Path) -> dict[str, str]:
    columns: dict[str, str] = source.meta["id_columns"]
    for array in columns.values():
        if array in source.arrays and array != "labels":
            np.save(folder / f"{array}.npy", source.arrays[array])
    return columns
