"""Batches of a partition: made when they are needed, cut out by one indexing operation each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from adasplit_flwr.batches import Batch, Seekable, training_bounds
from zerofl_flwr.training import Batches

EVALUATION_BATCH = 256
"""Samples in a batch of a test."""


class LazyBatches:
    """Batches that are made when they are first iterated.

    Parameters
    ----------
    make : callable
        Returns the batches; called once.
    """

    def __init__(self, make: Callable[[], Batches]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Batches:
        """The batches themselves."""
        return self._make()

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Iterate one epoch."""
        return iter(self.made)


class LazySeekable:
    """Batches that can be entered anywhere, made when they are first asked for.

    Parameters
    ----------
    make : callable
        Returns them; called once.
    """

    def __init__(self, make: Callable[[], Seekable]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Seekable:
        """The batches themselves."""
        return self._make()

    def batches_from(self, generator_seed: int, offset: int) -> Iterator[Batch]:
        """Give what is left of an epoch after so many batches; see `Seekable`."""
        return self.made.batches_from(generator_seed, offset)


def batches(dataset: TensorDataset, batch_size: int, *, shuffle: bool = False) -> Batches:
    """Iterate a tensor data set in batches, each cut out by one indexing operation.

    A shuffled epoch, which is one of training, does not end in a batch of one sample.
    """
    if shuffle:
        groups: BatchSampler = _TrainingBatches(RandomSampler(dataset), batch_size, drop_last=False)
    else:
        groups = BatchSampler(SequentialSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, sampler=groups, batch_size=None)


class _TrainingBatches(BatchSampler):
    """Divides an epoch as `training_bounds` says."""

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        for start, stop in training_bounds(len(order), self.batch_size):
            yield order[start:stop]

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(training_bounds(len(self.sampler), self.batch_size))  # type: ignore[arg-type]
