"""Where an AdaSplit client stands in its data, and how it goes on from there.

A client object lives for one message, and an exchange may end within an epoch. So a client notes
its position, an epoch and an offset in it, and every epoch has an order that its seed fixes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from zerofl_flwr.errors import ClientFailedError, DataError, SettingsError
from zerofl_flwr.training import Batches, seed_of

Batch = tuple[torch.Tensor, torch.Tensor]

_ORDER_STREAM = 6  # sets these draws apart from others of the same seed


@runtime_checkable
class Seekable(Protocol):
    """Batches that can be entered anywhere without loading those before."""

    def batches_from(self, generator_seed: int, offset: int) -> Iterator[Batch]:
        """Give what is left of an epoch.

        Parameters
        ----------
        generator_seed : int
            Seed of the epoch, from 0 below 2**63: the same seed, the same epoch.
        offset : int
            Batches of it to leave out. As many as the epoch has leave none.

        Returns
        -------
        iterator of (inputs, labels)
            The rest of the epoch. What it draws from torch's global generator for a batch is
            seeded by that batch's position.
        """
        ...


class TensorSamples(Protocol):
    """A data set that gives many samples at once, such as a ``TensorDataset``."""

    def __len__(self) -> int:
        """Count the samples."""
        ...

    def __getitem__(self, index: Any, /) -> tuple[torch.Tensor, ...]:
        """Give inputs (n, ...) and labels (n,) for an index tensor (n,)."""
        ...


@dataclass(frozen=True)
class Position:
    """Where the next batch is: an epoch, from 0, and how many of its batches are done."""

    epoch: int
    offset: int


BEGINNING = Position(0, 0)


def training_bounds(samples: int, batch_size: int, *, full: bool = False) -> list[tuple[int, int]]:
    """Divide an epoch of training into batches.

    Parameters
    ----------
    samples, batch_size : int
        Of the epoch, from 0; of a batch, from 1.
    full : bool
        Whether to leave out what does not fill a batch. Otherwise the last batch has the rest; a
        rest of one sample joins the batch before, for BatchNorm cannot train on one value a
        channel, which is what one sample leaves of small images.

    Returns
    -------
    list of (int, int)
        Where each batch starts and stops in the order of the epoch.
    """
    starts = list(range(0, samples, batch_size))
    lone = len(starts) > 1 and batch_size > 1 and samples % batch_size == 1
    if lone or (full and samples % batch_size):
        starts.pop()
    stops = [*starts[1:], len(starts) * batch_size if full else samples]
    return list(zip(starts, stops, strict=True)) if starts else []


def epoch_sizes(samples: int, batch_size: int, *, full: bool = False) -> tuple[int, ...]:
    """Return the samples of each batch of an epoch; parameters as of :func:`training_bounds`."""
    bounds = training_bounds(samples, batch_size, full=full)
    return tuple(stop - start for start, stop in bounds)


def exchange_sizes(epoch: Sequence[int], done: int, iterations: int | None) -> tuple[int, ...]:
    """Return the samples of each batch of an exchange, as :class:`BatchWalk` takes them.

    Parameters
    ----------
    epoch : sequence of int
        Samples of each batch of an epoch; at least one.
    done : int
        Batches that the client has taken before, in exchanges of as many each.
    iterations : int, optional
        Batches of an exchange; None: an epoch.

    Examples
    --------
    >>> exchange_sizes((4, 4, 2), done=2, iterations=3)
    (2, 4, 4)
    """
    if iterations is None:
        return tuple(epoch)
    return tuple(epoch[number % len(epoch)] for number in range(done, done + iterations))


class ShuffledBatches:
    """Batches of tensors, in an order of their own each epoch; entered anywhere at no cost.

    Parameters
    ----------
    dataset : TensorSamples
        Such as a ``TensorDataset`` of inputs (N, ...) and labels (N,).
    batch_size : int
        Samples in a batch.
    full : bool
        Whether an epoch leaves out what does not fill a batch; see :func:`training_bounds`.

    Raises
    ------
    DataError
        If `batch_size` is below 1, or all batches are to be full and the data set is smaller.

    Examples
    --------
    >>> data = torch.utils.data.TensorDataset(torch.zeros(9, 2), torch.zeros(9, dtype=torch.int64))
    >>> batches = ShuffledBatches(data, 4)
    >>> [len(labels) for _, labels in batches.batches_from(generator_seed=1, offset=0)]
    [4, 5]
    """

    def __init__(self, dataset: TensorSamples, batch_size: int, *, full: bool = False) -> None:
        if type(batch_size) is not int or batch_size < 1:
            raise DataError(f"batch_size is {batch_size!r}; it must be a whole number from 1")
        samples = len(dataset)
        if full and samples < batch_size:
            raise DataError(
                f"the data set has {samples} samples, which do not fill one batch of {batch_size}"
            )
        self._dataset = dataset
        self._bounds = training_bounds(samples, batch_size, full=full)

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self._bounds)

    def batches_from(self, generator_seed: int, offset: int) -> Iterator[Batch]:
        """Give what is left of the epoch with this seed after `offset` batches.

        Raises
        ------
        DataError
            If an epoch has fewer batches than that.
        """
        if not 0 <= offset <= len(self):
            raise DataError(f"batch {offset} of an epoch was asked for, which has {len(self)}")
        generator = torch.Generator().manual_seed(generator_seed)
        order = torch.randperm(len(self._dataset), generator=generator)
        return (self._batch(order[start:stop]) for start, stop in self._bounds[offset:])

    def _batch(self, index: torch.Tensor) -> Batch:
        inputs, labels = self._dataset[index]
        return inputs, labels


class BatchWalk:
    """Goes through a client's data from a position on, epoch after epoch.

    Parameters
    ----------
    source : Seekable, or iterable of (inputs, labels)
        An iterable, e.g. a shuffling ``DataLoader``, gives one epoch each time it is iterated;
        torch's global generator is seeded by (seed, stream, epoch, partition_id) for it, and left
        as it was for all else. To go on within an epoch, the batches before are loaded again and
        thrown away. A `Seekable` spares that.
    position : Position
        Where to begin.
    seed, partition_id : int
        The run's and the client's.

    Attributes
    ----------
    position : Position
        Where the next batch is.
    """

    def __init__(
        self, source: Batches | Seekable, position: Position, *, seed: int, partition_id: int
    ) -> None:
        self.position = position
        self._source = source
        self._seed = seed
        self._partition_id = partition_id

    def take(self, count: int) -> Iterator[Batch]:
        """Give the next batches; when one is given, `position` is behind it.

        Parameters
        ----------
        count : int
            How many; 0: those left of the epoch, or a whole one where none is left.

        Raises
        ------
        ClientFailedError
            If an epoch has no batch, or fewer than it had before.
        SettingsError
            If `count` is negative.
        """
        if count < 0:
            raise SettingsError(f"{count} batches cannot be taken; 0 means an epoch")
        taken = 0
        while True:
            for batch in self._rest_of_epoch():
                self.position = Position(self.position.epoch, self.position.offset + 1)
                taken += 1
                yield batch
                if taken == count:
                    return
            if self.position.offset == 0:
                raise ClientFailedError(
                    f"there is no training data: epoch {self.position.epoch} had no batch"
                )
            self.position = Position(self.position.epoch + 1, 0)
            if count == 0 and taken:
                return

    def _rest_of_epoch(self) -> Iterator[Batch]:
        epoch, done = self.position.epoch, self.position.offset
        seed = seed_of(self._seed, _ORDER_STREAM, epoch, self._partition_id)
        if isinstance(self._source, Seekable):
            yield from self._sought(self._source.batches_from(seed, done), epoch, done)
            return
        stream = _Stream(seed)
        with stream.flowing():
            batches = iter(self._source)
        for number in range(done):
            with stream.flowing():
                skipped = next(batches, None)
            if skipped is None:
                raise ClientFailedError(
                    f"training goes on after batch {done} of epoch {epoch}, which now has "
                    f"{number}: the training data is not what it was"
                )
        while True:
            with stream.flowing():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _sought(self, batches: Iterator[Batch], epoch: int, done: int) -> Iterator[Batch]:
        while True:
            done += 1  # from 1, for seeds that end in 0 are those without it
            seed = seed_of(self._seed, _ORDER_STREAM, epoch, self._partition_id, done)
            with _Stream(seed).flowing():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class _Stream:
    """Random numbers of torch's global generator that nothing else draws from in between."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def flowing(self) -> Iterator[None]:
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self._state)
        try:
            yield
        finally:
            self._state = torch.default_generator.get_state()
            torch.default_generator.set_state(before)
