"""Load one data set or several, divided among clients."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from simulations.data_settings import DataSettings
from simulations.preparation import prepare_partitions
from simulations.prepared import Prepared
from simulations.samples import Samples, open_samples
from simulations.standardise import channel_statistics, standardised
from simulations.validation import make_validation, shuffled_test_rows
from zerofl_flwr.errors import DataError

__all__ = ["DataSettings", "FederatedData", "Partition", "load_data"]

_KEPT_PARTITIONS = 512
_KEPT_BYTES = 512 * 2**20

_Channels = NDArray[np.float32]  # (1, C), or a row for each image


@dataclass(frozen=True)
class Partition:
    """The samples of one client.

    Parameters
    ----------
    train, validation : TensorDataset
        Pairs of standardised float32 images (n, C, H, W) and int64 labels (n,). There is at
        least one training sample; the validation set may be empty.
    """

    train: TensorDataset
    validation: TensorDataset


class FederatedData:
    """Samples divided among clients; tensors are made when a partition is first asked for.

    Images are standardised per channel with the mean and standard deviation of the whole training
    split of their data set, or with `standardise` ``"client"``, those of a client with the mean and
    standard deviation of its own training samples. Recently used partitions stay in memory, at
    most 512 of them or 512 MiB.

    Parameters
    ----------
    settings : DataSettings
        What was asked for.
    samples : Samples
        From `simulations.samples.open_samples`.
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
        If there are fewer test samples than asked for, or a client has none to validate on.
    """

    def __init__(self, settings: DataSettings, samples: Samples, partitions: Prepared) -> None:
        self.settings = settings
        self._samples = samples
        self._rows = partitions.arrays["rows"]
        self._offsets = partitions.arrays["offsets"]
        self._validation = make_validation(settings, samples, partitions)
        self._kept: OrderedDict[int, Partition] = OrderedDict()
        self._lock = threading.Lock()
        self.class_names = samples.class_names
        self.num_classes = len(self.class_names)
        self.sample_shape = samples.sample_shape
        self.num_partitions = len(self._offsets) - 1
        self.without_id: int = partitions.meta["without_id"]
        wanted = settings.test_samples
        if wanted is not None and wanted > samples.test_rows.size:
            raise DataError(
                f"test_samples is {wanted}, but the test split has {samples.test_rows.size} samples"
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
            Training and validation samples; where these are held out of the client's own, they
            are drawn from (seed, partition).

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
        made = self._make(partition_id)
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
        return self._validation.size(partition_id)

    def training_labels(self, partition_id: int) -> NDArray[np.int64]:
        """Return the labels that one client trains on, (n,), without making its tensors.

        Raises
        ------
        DataError
            If there is no such partition.
        """
        self._check_id(partition_id)
        rows = self._validation.training_rows(partition_id)
        return np.array(self._samples.labels[rows], dtype=np.int64)

    @cached_property
    def test(self) -> TensorDataset:
        """The test samples: standardised float32 images (n, C, H, W) and int64 labels (n,).

        Those of several data sets follow each other. With `test_samples`, the first so many of a
        shuffle that does not depend on the seed. Each image is standardised with the statistics
        of its data set's training split, also where clients have their own.
        """
        rows = np.asarray(self._samples.test_rows)
        if self.settings.test_samples is not None:
            rows = shuffled_test_rows(rows)[: self.settings.test_samples]
        return self._tensors(rows, *self._statistics_of_data_sets(rows))

    def label_counts(self) -> NDArray[np.int64]:
        """Count the samples of each class that each client has.

        Validation samples are included where they are held out of them.

        Returns
        -------
        int64 array (num_partitions, num_classes)
            The counts.
        """
        counts = np.zeros((self.num_partitions, self.num_classes), dtype=np.int64)
        owners = np.repeat(np.arange(self.num_partitions), np.diff(self._offsets))
        np.add.at(counts, (owners, self._samples.labels[self._rows]), 1)
        return counts

    def _check_id(self, partition_id: int) -> None:
        if not 0 <= partition_id < self.num_partitions:
            raise DataError(
                f"there is no partition {partition_id}, they are 0 to {self.num_partitions - 1}"
            )

    def _make(self, partition_id: int) -> Partition:
        train, validation = self._validation.split(partition_id)
        if self.settings.standardise == "client":
            mean, std = self._statistics_of_client(train)
            return Partition(self._tensors(train, mean, std), self._tensors(validation, mean, std))
        return Partition(
            self._tensors(train, *self._statistics_of_data_sets(train)),
            self._tensors(validation, *self._statistics_of_data_sets(validation)),
        )

    def _statistics_of_client(self, train: NDArray[np.int64]) -> tuple[_Channels, _Channels]:
        mean, std = channel_statistics(self._samples.images, train)
        return np.asarray([mean], dtype=np.float32), np.asarray([std], dtype=np.float32)

    def _statistics_of_data_sets(self, rows: NDArray[np.int64]) -> tuple[_Channels, _Channels]:
        owners = self._samples.datasets(rows)
        return self._samples.mean[owners], self._samples.std[owners]

    def _tensors(self, rows: NDArray[np.int64], mean: _Channels, std: _Channels) -> TensorDataset:
        images = standardised(self._samples.images(rows), mean, std)
        labels = np.array(self._samples.labels[rows], dtype=np.int64)
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
    """Load one data set or several, divided among clients.

    The first call decodes and divides the data and stores both under the cache directory
    (`simulations.prepared.cache_root`); later calls, also from other processes, memory-map
    that. Within a process, equal settings give the same object.

    Parameters
    ----------
    settings : DataSettings
        Which data sets, and how to divide them.

    Returns
    -------
    FederatedData
        The clients' samples and the test samples. Deterministic for given settings.

    Raises
    ------
    DataError, SettingsError
        If the data cannot be read, or not be divided as asked.

    Examples
    --------
    >>> data = load_data(DataSettings(dataset="digits", num_clients=5))
    >>> data.num_partitions, data.num_classes, data.sample_shape
    (5, 10, (1, 8, 8))
    """
    samples = open_samples(settings)
    return FederatedData(settings, samples, prepare_partitions(settings, samples.table))
