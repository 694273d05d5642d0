"""Batches of tensors, in order or shuffled."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from simulations.batches import batches


def test_batches_cover_the_data_in_order_or_shuffled_by_the_seed() -> None:
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    plain = [labels.tolist() for _, labels in batches(data, 4)]
    assert plain == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    orders = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        orders.append([labels.tolist() for _, labels in batches(data, 4, shuffle=True)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(label for group in orders[0] for label in group) == list(range(10))
    assert orders[0] != plain
    for inputs, labels in batches(data, 4, shuffle=True):
        assert torch.equal(inputs, labels.float())


@pytest.mark.parametrize(
    ("samples", "batch_size", "sizes"),
    [
        (9, 4, [4, 5]),
        (8, 4, [4, 4]),
        (10, 4, [4, 4, 2]),
        (5, 4, [5]),
        (4, 4, [4]),
        (1, 4, [1]),
        (3, 1, [1, 1, 1]),
        (3, 2, [3]),
    ],
)
def test_an_epoch_of_training_ends_in_no_batch_of_one_sample(
    samples: int, batch_size: int, sizes: list[int]
) -> None:
    data = TensorDataset(torch.arange(samples), torch.arange(samples))
    loader = batches(data, batch_size, shuffle=True)
    epoch = [inputs.tolist() for inputs, _ in loader]
    assert [len(batch) for batch in epoch] == sizes
    assert sorted(chain(*epoch)) == list(range(samples))
    assert isinstance(loader, DataLoader)
    assert len(loader) == len(sizes)
    unshuffled = [len(labels) for _, labels in batches(data, batch_size)]
    assert max(unshuffled) <= batch_size


@pytest.mark.parametrize("samples", [8, 9, 10])
def test_the_order_of_the_samples_is_that_of_plain_batches(samples: int) -> None:
    data = TensorDataset(torch.arange(samples), torch.arange(samples))
    plain = BatchSampler(RandomSampler(data), 4, drop_last=False)
    for _ in range(2):
        orders = []
        for loader in (
            DataLoader(data, sampler=plain, batch_size=None),
            batches(data, 4, shuffle=True),
        ):
            torch.manual_seed(5)
            orders.append([[inputs.tolist() for inputs, _ in loader] for _ in range(2)])
        if samples % 4 != 1:
            assert orders[0] == orders[1]
        else:
            assert [[*chain(*e)] for e in orders[0]] == [[*chain(*e)] for e in orders[1]]
