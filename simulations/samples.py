"""The decoded samples of one data set or of several, as one table of one image shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulations.conform import conform, conformed_shape
from simulations.data_settings import DataSettings
from simulations.joined import prepare_joined
from simulations.preparation import prepare_source
from simulations.prepared import Prepared
from zerofl_flwr.errors import DataError

Rows = NDArray[np.int64]


class Samples:
    """Rows of images and labels; images are read and conformed when they are asked for.

    Parameters
    ----------
    settings : DataSettings
        `image_size` and `image_channels` matter.
    sources : sequence of Prepared
        The data sets, from `simulations.preparation.prepare_source`.
    table : Prepared
        From `simulations.joined.prepare_joined`, or the only source itself.

    Attributes
    ----------
    table : Prepared
        What `simulations.preparation.prepare_partitions` divides.
    labels : int64 array (N,)
        Class of each row.
    test_rows : int64 array
        Rows of the test split, data set by data set.
    class_names : tuple of str
        Name of each class, by its number.
    sample_shape : tuple of int
        ``(channels, height, width)``.
    mean, std : float32 array (data sets, channels)
        Over each data set's training rows, in units of `images`.
    """

    def __init__(
        self, settings: DataSettings, sources: Sequence[Prepared], table: Prepared
    ) -> None:
        self._conformity = settings.image_size, settings.image_channels
        self._images = [source.arrays["images"] for source in sources]
        self._starts = np.cumsum([0, *map(len, self._images[:-1])])
        self.table = table
        self.labels: Rows = table.arrays["labels"]
        self.test_rows: Rows = table.arrays["test_rows"]
        self.class_names: tuple[str, ...] = tuple(table.meta["class_names"])
        self.sample_shape = conformed_shape(self._images[0], *self._conformity)
        self.mean = np.asarray(table.meta["mean"], dtype=np.float32).reshape(len(sources), -1)
        self.std = np.asarray(table.meta["std"], dtype=np.float32).reshape(len(sources), -1)

    def images(self, rows: Rows) -> NDArray[np.float32]:
        """Read images.

        Parameters
        ----------
        rows : int64 array (n,)
            Row numbers.

        Returns
        -------
        float32 array (n, C, H, W)
            Grey values 0 to 255, or what an image of a recording holds.
        """
        if len(self._images) == 1:
            return conform(self._images[0][rows], *self._conformity).astype(np.float32)
        images = np.empty((rows.size, *self.sample_shape), dtype=np.float32)
        owners = self.datasets(rows)
        for owner in np.unique(owners):
            own = owners == owner
            stored = self._images[owner][rows[own] - self._starts[owner]]
            images[own] = conform(stored, *self._conformity)
        return images

    def datasets(self, rows: Rows) -> Rows:
        """Return the number of each row's data set, int64 (n,)."""
        return np.searchsorted(self._starts, rows, side="right") - 1


def open_samples(settings: DataSettings) -> Samples:
    """Open the data sets that settings name, decoding and joining them first where needed.

    Parameters
    ----------
    settings : DataSettings
        What to load; how to divide it does not matter.

    Returns
    -------
    Samples
        Of all data sets together.

    Raises
    ------
    DataError
        If one cannot be read, or they do not go together.
    """
    sources = [_open_source(settings, name) for name in settings.datasets]
    changed = (settings.classes, settings.image_size, settings.image_channels)
    plain = len(sources) == 1 and not any(changed)
    table = sources[0] if plain else prepare_joined(settings, sources)
    return Samples(settings, sources, table)


def _open_source(settings: DataSettings, name: str) -> Prepared:
    if settings.partitioner != "dataset":
        return prepare_source(settings)
    try:
        return prepare_source(replace(settings, dataset=name, partitioner="iid"))
    except DataError as error:
        raise DataError(f"data set {name}: {error}") from error
