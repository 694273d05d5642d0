"""Which samples a client trains on, and which ones it validates on."""

from __future__ import annotations

from decimal import Decimal
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulations.data_settings import DataSettings
from simulations.prepared import Prepared
from simulations.samples import Samples
from zerofl_flwr.errors import DataError

_VALIDATION_STREAM = 2  # sets these draws apart from the partitioner's of the same seed
_TEST_SEED = 0  # a subset of the test split is the same one for every seed of the run

Rows = NDArray[np.int64]


class Validation(Protocol):
    """Divides a client's samples by what they are used for."""

    def size(self, partition_id: int) -> int:
        """Count the validation samples of a client."""

    def split(self, partition_id: int) -> tuple[Rows, Rows]:
        """Return the rows that a client trains on, and those it validates on."""

    def training_rows(self, partition_id: int) -> Rows:
        """Return the rows that a client trains on alone."""


class HeldOut:
    """A share of a client's own samples, drawn from (seed, partition).

    Parameters
    ----------
    settings : DataSettings
        `validation_fraction` and `seed` matter.
    partitions : Prepared
        From `simulations.preparation.prepare_partitions`.
    """

    def __init__(self, settings: DataSettings, partitions: Prepared) -> None:
        self._fraction = Decimal(str(settings.validation_fraction))
        self._seed = settings.seed
        self._partitions = partitions

    def size(self, partition_id: int) -> int:
        """Count the validation samples of a client."""
        return int(self._fraction * len(rows_of(self._partitions, partition_id)))

    def split(self, partition_id: int) -> tuple[Rows, Rows]:
        """Return the rows that a client trains on, and those it validates on."""
        rng = np.random.default_rng((self._seed, _VALIDATION_STREAM, partition_id))
        shuffled = rng.permutation(rows_of(self._partitions, partition_id))
        held = self.size(partition_id)
        return shuffled[held:], shuffled[:held]

    def training_rows(self, partition_id: int) -> Rows:
        """Return the rows that a client trains on alone."""
        return self.split(partition_id)[0]


class FromTestSplit:
    """Test samples of the data set and of the classes that a client trains on.

    They do not depend on the seed, as far as these classes do not. Clients of the same data set
    and classes validate on the same samples.

    Parameters
    ----------
    settings : DataSettings
        `validation_samples` matters: at most so many, the first ones of a fixed shuffle.
    samples : Samples
        What is divided.
    partitions : Prepared
        From `simulations.preparation.prepare_partitions`.

    Raises
    ------
    DataError
        If a client would get none.
    """

    def __init__(self, settings: DataSettings, samples: Samples, partitions: Prepared) -> None:
        self._samples = samples
        self._partitions = partitions
        self._most = settings.validation_samples
        self._order = _shuffled_by_data_set(samples)
        self._kinds = self._kinds_of(self._order)
        self._tested = np.bincount(self._kinds)
        for partition_id in range(len(partitions.arrays["offsets"]) - 1):
            if self.size(partition_id) == 0:
                raise DataError(
                    f"validation_from is 'test', but the test split has no sample of the classes "
                    f"that client {partition_id} trains on"
                )

    def size(self, partition_id: int) -> int:
        """Count the validation samples of a client."""
        kinds = self._trained_kinds(partition_id)
        found = int(self._tested[kinds[kinds < self._tested.size]].sum())
        return found if self._most is None else min(found, self._most)

    def split(self, partition_id: int) -> tuple[Rows, Rows]:
        """Return the rows that a client trains on, and those it validates on."""
        own = np.isin(self._kinds, self._trained_kinds(partition_id))
        validation = self._order[own][: self._most]
        return self.training_rows(partition_id), validation

    def training_rows(self, partition_id: int) -> Rows:
        """Return the rows that a client trains on alone."""
        return rows_of(self._partitions, partition_id)

    def _trained_kinds(self, partition_id: int) -> Rows:
        return np.unique(self._kinds_of(rows_of(self._partitions, partition_id)))

    def _kinds_of(self, rows: Rows) -> Rows:
        """Give each row a number that stands for its data set and class."""
        datasets = self._samples.datasets(rows)
        return datasets * len(self._samples.class_names) + self._samples.labels[rows]


def shuffled_test_rows(rows: Rows) -> Rows:
    """Return test rows in an order that does not depend on the run's seed, int64."""
    return np.random.default_rng(_TEST_SEED).permutation(np.asarray(rows))


def rows_of(partitions: Prepared, partition_id: int) -> Rows:
    """Return the training rows of one client, int64."""
    start, stop = partitions.arrays["offsets"][partition_id : partition_id + 2]
    return np.asarray(partitions.arrays["rows"][start:stop])


def make_validation(settings: DataSettings, samples: Samples, partitions: Prepared) -> Validation:
    """Choose by the setting `validation_from`."""
    if settings.validation_from == "test":
        return FromTestSplit(settings, samples, partitions)
    return HeldOut(settings, partitions)


def _shuffled_by_data_set(samples: Samples) -> Rows:
    """Shuffle each data set by itself, so that no client's samples depend on the others'."""
    owners = samples.datasets(samples.test_rows)
    return np.concatenate(
        [shuffled_test_rows(samples.test_rows[owners == owner]) for owner in np.unique(owners)]
    )
