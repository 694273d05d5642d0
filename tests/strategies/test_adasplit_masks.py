"""Masks as data for pictures: whose, how dense, how much two of them overlap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from adasplit_flwr.masked_server import MaskedServer, store_for
from strategies.adasplit_masks import summarise_masks
from tests.strategies.adasplit_federation import adasplit, run_rounds, split_nodes


def test_density_and_overlap_by_hand() -> None:
    model = nn.Linear(3, 3, bias=False)
    store = store_for(model)
    kept = {
        2: [1, 1, 1, 1, 0, 0, 0, 0, 0],
        5: [0, 0, 1, 1, 1, 1, 0, 0, 0],
        7: [0, 0, 0, 0, 0, 0, 0, 0, 0],
    }
    for client, bits in kept.items():
        store.record(client).values[0] = torch.tensor(bits) * 4.0 - 2
        store.changed(client)
    summary = summarise_masks(MaskedServer(model, store, masks="hard"))
    assert summary.clients == [2, 5, 7]
    np.testing.assert_allclose(summary.density, [4 / 9, 4 / 9, 0])
    expected = np.array([[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(summary.overlap, expected)
    soft = summarise_masks(MaskedServer(model, store))
    high, low = 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))
    np.testing.assert_allclose(soft.density[0], (4 * high + 5 * low) / 9, rtol=1e-6)
    np.testing.assert_array_equal(soft.overlap, summary.overlap)


def test_two_random_masks_overlap_by_a_third() -> None:
    model = nn.Linear(200, 200)
    store = store_for(model)
    for client in (0, 1):
        store.record(client)
        store.changed(client)
    summary = summarise_masks(MaskedServer(model, store, masks="hard"))
    assert summary.overlap[0, 1] == pytest.approx(1 / 3, abs=0.01)
    assert summary.density == pytest.approx(0.5, abs=0.01)


def test_a_strategy_tells_of_those_that_were_picked() -> None:
    strategy = adasplit(eta=0.5)
    (played,) = run_rounds(strategy, split_nodes(4), (1,))
    summary = strategy.mask_summary()
    assert summary.clients == played.uploaders
    assert summary.overlap.shape == (2, 2)
    assert summary.density[0] == played.report.clients[summary.clients[0]].mask_density
    nothing = adasplit(mask="none").mask_summary()
    assert (nothing.clients, nothing.density.size, nothing.overlap.size) == ([], 0, 0)
