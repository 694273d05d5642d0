"""Load a data set divided among clients."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from simulations.data_settings import DataSettings
from simulations.preparation import prepare_partitions, prepare_source
from simulations.prepared import Prepared
from zerofl_flwr.errors import DataError

__all__ = ["DataSettings", "FederatedData", "Partition", "load_data"]

_KEPT_PARTITIONS = 512
_KEPT_BYTES = 512 * 2**20
_VALIDATION_STREAM = 2  # sets these draws apart from the partitioner's of the same seed
_TEST_SEED = 0  # a subset of the test split is the same one for every seed of the run


@dataclass(frozen=True)
class Partition:
    """The samples of one client.

    Parameters
    ----------
    train, validation : TensorDataset
        Pairs of normalised float32 images (n, C, H, W) and int64 labels (n,). There is at
        least one training sample; the validation set may be empty.
    """

    train: TensorDataset
    validation: TensorDataset


class FederatedData:
    """A data set divided among clients; tensors are made when a partition is first asked for.

    Images are normalised per channel with the mean and standard deviation of the whole
    training split. Recently used partitions stay in memory, at most 512 of them or 512 MiB.

    Parameters
    ----------
    settings : DataSettings
        What was asked for.
    source : Prepared
        From `simulations.preparation.prepare_source`.
    partitions : Prepared
        From `simulations.preparation.prepare_partitions`.

    Attributes
    ----------
    class_names : tuple of str
        Name of each class, by its number.
    num_classes : int
        Number of classes.
    sample_shape : tuple of int
        ``(channels, height, width)``.
    num_partitions : int
        Number of clients.
    without_id : int
        Training samples that belong to no client, since they lack the id that ``natural`` divides
        by.

    Raises
    ------
    DataError
        If there are fewer test samples than asked for.
    """

    def __init__(self, settings: DataSettings, source: Prepared, partitions: Prepared) -> None:
        self.settings = settings
        self._images = source.arrays["images"]
        self._labels = source.arrays["labels"]
        self._test_rows = source.arrays["test_rows"]
        self._rows = partitions.arrays["rows"]
        self._offsets = partitions.arrays["offsets"]
        self._mean = np.asarray(source.meta["mean"], dtype=np.float32).reshape(1, -1, 1, 1)
        self._std = np.asarray(source.meta["std"], dtype=np.float32).reshape(1, -1, 1, 1)
        self._kept: OrderedDict[int, Partition] = OrderedDict()
        self._lock = threading.Lock()
        self.class_names: tuple[str, ...] = tuple(source.meta["class_names"])
        self.num_classes = len(self.class_names)
        channels, height, width = self._images.shape[1:]
        self.sample_shape: tuple[int, int, int] = (channels, height, width)
        self.num_partitions = len(self._offsets) - 1
        self.without_id: int = partitions.meta["without_id"]
        wanted = settings.test_samples
        if wanted is not None and wanted > len(self._test_rows):
            raise DataError(
                f"test_samples is {wanted}, but the test split has {len(self._test_rows)} samples"
            )

    def partition(self, partition_id: int) -> Partition:
        """Return the samples of one client.

        Parameters
        ----------
        partition_id : int
            From 0 to ``num_partitions - 1``.

        Returns
        -------
        Partition
            Training and validation samples; the split is drawn from (seed, partition).

        Raises
        ------
        DataError
            If there is no such partition.
        """
        self._check_id(partition_id)
        with self._lock:
            if partition_id in self._kept:
                self._kept.move_to_end(partition_id)
                return self._kept[partition_id]
        train_rows, validation_rows = self._split(partition_id)
        made = Partition(self._tensors(train_rows), self._tensors(validation_rows))
        with self._lock:
            self._kept[partition_id] = made
            while len(self._kept) > 1 and self._over_budget():
                self._kept.popitem(last=False)
        return made

    def validation_size(self, partition_id: int) -> int:
        """Count the validation samples of one client without making its tensors.

        Raises
        ------
        DataError
            If there is no such partition.
        """
        self._check_id(partition_id)
        start, stop = self._offsets[partition_id : partition_id + 2]
        return int(Decimal(str(self.settings.validation_fraction)) * int(stop - start))

    @cached_property
    def test(self) -> TensorDataset:
        """The test samples: normalised float32 images (n, C, H, W) and int64 labels (n,).

        With `test_samples`, the first so many of a shuffle that does not depend on the seed.
        """
        rows = np.asarray(self._test_rows)
        if self.settings.test_samples is not None:
            shuffled = np.random.default_rng(_TEST_SEED).permutation(rows)
            rows = shuffled[: self.settings.test_samples]
        return self._tensors(rows)

    def label_counts(self) -> NDArray[np.int64]:
        """Count the samples of each class that each client has, validation included.

        Returns
        -------
        int64 array (num_partitions, num_classes)
            The counts.
        """
        counts = np.zeros((self.num_partitions, self.num_classes), dtype=np.int64)
        owners = np.repeat(np.arange(self.num_partitions), np.diff(self._offsets))
        np.add.at(counts, (owners, self._labels[self._rows]), 1)
        return counts

    def _check_id(self, partition_id: int) -> None:
        if not 0 <= partition_id < self.num_partitions:
            raise DataError(
                f"there is no partition {partition_id}, they are 0 to {self.num_partitions - 1}"
            )

    def _split(self, partition_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        start, stop = self._offsets[partition_id : partition_id + 2]
        rows = np.asarray(self._rows[start:stop])
        rng = np.random.default_rng((self.settings.seed, _VALIDATION_STREAM, partition_id))
        shuffled = rng.permutation(rows)
        held = self.validation_size(partition_id)
        return shuffled[held:], shuffled[:held]

    def _tensors(self, rows: NDArray[np.int64]) -> TensorDataset:
        images = (self._images[rows].astype(np.float32) - self._mean) / self._std
        labels = np.array(self._labels[rows], dtype=np.int64)
        return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))

    def _over_budget(self) -> bool:
        held = sum(
            tensors.numel() * tensors.element_size()
            for partition in self._kept.values()
            for tensors in (partition.train.tensors[0], partition.validation.tensors[0])
        )
        return len(self._kept) > _KEPT_PARTITIONS or held > _KEPT_BYTES


@lru_cache(maxsize=8)
def load_data(settings: DataSettings) -> FederatedData:
    """Load a data set divided among clients.

    The first call decodes and divides the data set and stores both under the cache directory
    (`simulations.prepared.cache_root`); later calls, also from other processes, memory-map
    that. Within a process, equal settings give the same object.

    Parameters
    ----------
    settings : DataSettings
        Which data set, and how to divide it.

    Returns
    -------
    FederatedData
        The clients' samples and the test samples. Deterministic for given settings.

    Raises
    ------
    DataError
        If the data cannot be read, or not be divided as asked.

    Examples
    --------
    >>> data = load_data(DataSettings(dataset="digits", num_clients=5))
    >>> data.num_partitions, data.num_classes, data.sample_shape
    (5, 10, (1, 8, 8))
    """
    source = prepare_source(settings)
    return FederatedData(settings, source, prepare_partitions(settings, source))
