"""Where a client stands in its data, and that the same batches come however it goes through."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from adasplit_flwr.batches import (
    BEGINNING,
    Batch,
    BatchWalk,
    Position,
    Seekable,
    ShuffledBatches,
    epoch_sizes,
    exchange_sizes,
)
from adasplit_flwr.local_trainer import LocalTrainer
from tests.adasplit_flwr.small_clients import PLAN
from zerofl_flwr.errors import ClientFailedError, DataError, SettingsError
from zerofl_flwr.training import Batches, seed_of


def numbers(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples).float(), torch.arange(samples))


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Adds noise from the global generator, as random flips and crops would."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(2) + index, torch.tensor(index)


class NoisyBatches:
    """Seekable, with noise from the global generator."""

    def batches_from(self, generator_seed: int, offset: int) -> Iterator[Batch]:
        for number in range(offset, 5):
            yield torch.rand(3), torch.tensor([number, generator_seed % 97])


SOURCES: dict[str, Batches | Seekable] = {
    "shuffled": ShuffledBatches(numbers(9), 2),
    "noisy": NoisyBatches(),
    "loader": DataLoader(Noisy(), batch_size=2, shuffle=True),
    "list": [(torch.tensor([float(n)]), torch.tensor([n])) for n in range(5)],
}


def walk_of(source: Batches | Seekable, position: Position = BEGINNING) -> BatchWalk:
    return BatchWalk(source, position, seed=3, partition_id=1)


def texts(batches: Iterator[Batch]) -> list[str]:
    return [f"{inputs.tolist()} {labels.tolist()}" for inputs, labels in batches]


@pytest.mark.parametrize(
    ("samples", "batch_size", "full", "sizes"),
    [
        (9, 4, False, [4, 5]),
        (8, 4, False, [4, 4]),
        (10, 4, False, [4, 4, 2]),
        (5, 4, False, [5]),
        (1, 4, False, [1]),
        (3, 1, False, [1, 1, 1]),
        (3, 2, False, [3]),
        (3, 8, False, [3]),
        (9, 4, True, [4, 4]),
        (8, 4, True, [4, 4]),
        (11, 4, True, [4, 4]),
        (4, 4, True, [4]),
        (2, 1, True, [1, 1]),
    ],
)
def test_an_epoch_has_no_lone_sample_or_only_full_batches(
    samples: int, batch_size: int, full: bool, sizes: list[int]
) -> None:
    batches = ShuffledBatches(numbers(samples), batch_size, full=full)
    epoch = list(batches.batches_from(5, 0))
    assert [len(labels) for _, labels in epoch] == sizes
    assert len(batches) == len(sizes)
    seen = [label for _, labels in epoch for label in labels.tolist()]
    assert len(set(seen)) == len(seen)
    if sum(sizes) == samples:
        assert sorted(seen) == list(range(samples))
    assert all(torch.equal(inputs, labels.float()) for inputs, labels in epoch)


def test_the_order_is_the_permutation_of_the_epochs_seed_and_differs_between_epochs() -> None:
    batches = ShuffledBatches(numbers(9), 4)
    generator = torch.Generator().manual_seed(seed_of(3, 6, 0, 1))
    order = torch.randperm(9, generator=generator).tolist()
    walk = walk_of(batches)
    first, second, third, fourth = (labels.tolist() for _, labels in walk.take(4))
    assert first + second == order
    assert sorted(third + fourth) == sorted(order) != order
    assert third + fourth != order
    other = BatchWalk(batches, BEGINNING, seed=3, partition_id=2)
    assert next(other.take(1))[1].tolist() != first


@hypothesis_settings(max_examples=50)
@given(
    samples=st.integers(1, 40), batch_size=st.integers(1, 12), full=st.booleans(), data=st.data()
)
def test_an_epoch_can_be_entered_anywhere(
    samples: int, batch_size: int, full: bool, data: st.DataObject
) -> None:
    full = full and batch_size <= samples
    batches = ShuffledBatches(numbers(samples), batch_size, full=full)
    offset = data.draw(st.integers(0, len(batches)))
    whole, rest = texts(batches.batches_from(1, 0)), texts(batches.batches_from(1, offset))
    assert rest == whole[offset:]


def test_a_shuffling_loader_is_seeded_at_the_start_of_each_epoch() -> None:
    data = numbers(10)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    expected = []
    for epoch in range(3):
        torch.manual_seed(seed_of(3, 6, epoch, 1))
        expected += texts(iter(loader))
    torch.manual_seed(4)
    assert texts(walk_of(loader).take(9)) == expected
    assert len({*expected[:3]} & {*expected[3:6]}) < 3


@pytest.mark.parametrize("name", SOURCES)
def test_one_step_at_a_time_gives_the_batches_of_a_long_walk(name: str) -> None:
    source = SOURCES[name]
    walk = walk_of(source)
    expected = texts(walk.take(13))
    position, came = BEGINNING, []
    for _ in range(13):
        one = walk_of(source, position)
        came += texts(one.take(1))
        torch.rand(3)  # what training draws in between does not matter
        position = one.position
    assert came == expected
    assert position == walk.position
    assert len(set(expected)) == (5 if name == "list" else 13)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("count", [0, 7])
def test_the_global_generator_stays_as_it_was(name: str, count: int) -> None:
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    between = []
    for _ in walk_of(SOURCES[name]).take(count):
        between.append(torch.rand(3))
        torch.manual_seed(8)
    assert all(torch.equal(drawn, expected) for drawn in between)
    assert len(between) == (count or (4 if name == "shuffled" else 5))


@pytest.mark.parametrize("name", SOURCES)
def test_no_count_means_the_rest_of_the_epoch_or_a_whole_one(name: str) -> None:
    source = SOURCES[name]
    length = 4 if name == "shuffled" else 5
    everything = texts(walk_of(source).take(3 * length))
    for position, after, begin, end in [
        (Position(0, 0), Position(1, 0), 0, length),
        (Position(0, 3), Position(1, 0), 3, length),
        (Position(1, 0), Position(2, 0), length, 2 * length),
        (Position(0, length), Position(2, 0), length, 2 * length),
    ]:
        walk = walk_of(source, position)
        assert texts(walk.take(0)) == everything[begin:end]
        assert walk.position == after


def test_a_position_is_behind_the_batch_that_was_given() -> None:
    walk = walk_of(SOURCES["shuffled"])
    positions = [walk.position for _ in walk.take(6)]
    assert positions == [
        *(Position(0, offset) for offset in (1, 2, 3, 4)),
        *(Position(1, offset) for offset in (1, 2)),
    ]


def test_a_seekable_source_loads_only_what_is_taken() -> None:
    asked: list[tuple[int, int]] = []

    class Noting:
        def batches_from(self, generator_seed: int, offset: int) -> Iterator[Batch]:
            asked.append((generator_seed, offset))
            yield from itertools.repeat((torch.zeros(1), torch.zeros(1)), 9 - offset)

    walk = walk_of(Noting(), Position(4, 6))
    assert len(list(walk.take(5))) == 5
    assert asked == [(seed_of(3, 6, 4, 1), 6), (seed_of(3, 6, 5, 1), 0)]
    assert isinstance(SOURCES["shuffled"], Seekable)
    assert not isinstance(SOURCES["loader"], Seekable)


def test_a_data_set_without_batches_is_an_error() -> None:
    sources: list[Batches | Seekable] = [[], ShuffledBatches(numbers(0), 4)]
    for source in sources:
        with pytest.raises(ClientFailedError, match="no training data: epoch 0 had no batch"):
            list(walk_of(source).take(0))
    once = iter([(torch.zeros(1), torch.zeros(1))] * 2)
    with pytest.raises(ClientFailedError, match="epoch 1 had no batch"):
        list(walk_of(once).take(3))


def test_data_that_has_become_less_is_an_error() -> None:
    with pytest.raises(ClientFailedError, match="after batch 6 of epoch 2, which now has 5"):
        list(walk_of(SOURCES["list"], Position(2, 6)).take(1))
    with pytest.raises(DataError, match="batch 6 of an epoch was asked for, which has 4"):
        list(walk_of(SOURCES["shuffled"], Position(2, 6)).take(1))
    with pytest.raises(DataError, match="batch -1 of an epoch"):
        ShuffledBatches(numbers(9), 2).batches_from(0, -1)


def test_batches_that_cannot_be_made_are_refused() -> None:
    message = "the data set has 3 samples, which do not fill one batch of 4"
    with pytest.raises(DataError, match=message):
        ShuffledBatches(numbers(3), 4, full=True)
    for batch_size in (0, -1, 2.5, True):
        with pytest.raises(DataError, match=f"batch_size is {batch_size}; it must be a whole"):
            ShuffledBatches(numbers(3), batch_size)  # type: ignore[arg-type]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(SettingsError, match="-1 batches cannot be taken; 0 means an epoch"):
        list(walk_of(SOURCES["list"]).take(-1))


def test_an_epochs_order_and_an_iterations_dropout_draw_from_other_seeds() -> None:
    asked: list[int] = []

    class Source:
        def batches_from(self, generator_seed: int, offset: int) -> Iterator[Any]:
            asked.append(generator_seed)
            return iter([(torch.zeros(1), torch.zeros(1))] if offset == 0 else [])

    seen: list[int] = []

    class Noise(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.append(torch.initial_seed())
            return super().forward(inputs)

    list(BatchWalk(Source(), Position(4, 0), seed=3, partition_id=1).take(1))
    trainer = LocalTrainer(Noise(2, 2), torch.nn.Linear(2, 2), seed=3, partition_id=1)
    trainer.step(torch.eye(2), torch.zeros(2, dtype=torch.int64), PLAN, 4)
    assert len(asked) == len(seen) == 1
    assert asked != seen


@given(
    samples=st.integers(1, 20),
    batch_size=st.integers(1, 6),
    iterations=st.none() | st.integers(1, 8),
    exchanges=st.integers(1, 4),
)
def test_the_sizes_of_an_exchange_are_those_that_are_walked(
    samples: int, batch_size: int, iterations: int | None, exchanges: int
) -> None:
    data = TensorDataset(torch.zeros(samples, 1), torch.zeros(samples, dtype=torch.int64))
    walk = BatchWalk(ShuffledBatches(data, batch_size), BEGINNING, seed=1, partition_id=2)
    epoch, done = epoch_sizes(samples, batch_size), 0
    assert sum(epoch) == samples
    for _ in range(exchanges):
        taken = tuple(len(labels) for _, labels in walk.take(iterations or 0))
        assert exchange_sizes(epoch, done, iterations) == taken
        done += len(taken)
