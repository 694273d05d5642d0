"""What a run's settings and data make of AdaSplit's options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulations import adasplit_parts
from simulations.adasplit_parts import make_strategy, most_samples
from simulations.data import FederatedData, load_data
from simulations.settings import RunSettings
from tests.simulations.changed_settings import settings_with

SMALL: dict[str, Any] = {
    "algorithm": "adasplit",
    "num-clients": 5,
    "clients-per-round": 4,
    "rounds": 4,
    "partitioner": "classes",
    "classes-per-client": 2,
    "validation-fraction": 0.2,
    "batch-size": 16,
    "kappa": 0.25,
    "backend": "in-process",
    "seed": 3,
}


def small(**changes: Any) -> RunSettings:
    return settings_with(SMALL, **changes)


def bound(**changes: Any) -> int:
    settings = small(**changes)
    return most_samples(settings, load_data(settings.data))


def sizes() -> list[tuple[int, int]]:
    """Count training and validation samples of each client by its tensors."""
    data = load_data(small().data)
    partitions = [data.partition(client) for client in range(5)]
    return [(len(each.train), len(each.validation)) for each in partitions]


def test_an_epoch_has_no_more_samples_than_the_largest_partition() -> None:
    assert len({sum(each) for each in sizes()}) > 1
    assert bound() == max(sum(each) for each in sizes())
    assert bound(full_batches=True, precision="float16") == bound()


def test_an_exchange_of_batches_may_go_through_the_data_again() -> None:
    assert bound(iterations_per_round=1000) == 1000 * 17
    assert bound(iterations_per_round=1000, batch_size=1024) == 1000 * bound()


def test_a_test_at_the_server_counts_the_largest_validation_set() -> None:
    options: dict[str, Any] = {"validation_from": "test", "iterations_per_round": 1}
    data = load_data(small(**options).data)
    largest = max(len(data.partition(client).validation) for client in range(5))
    assert bound(**options) == 17
    assert bound(**options, inference="server") == largest > 17


def test_no_tensors_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FederatedData, "partition", lambda *_: pytest.fail("tensors were made"))
    assert bound(inference="server") > 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1024.0),
        # Behind the first block of digits_cnn an activation is 16 x 8 x 8 numbers.
        ({"iterations_per_round": 100000}, 100000 * 17 * 16 * 8 * 8 * 4 / 10**6),
    ],
)
def test_the_strategy_takes_what_the_largest_client_may_upload(
    options: dict[str, Any], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def record(*_: Any, max_upload_mb: float, **__: Any) -> None:
        given.append(max_upload_mb)

    monkeypatch.setattr(adasplit_parts, "AdaSplit", record)
    make_strategy(small(**options), None)
    np.testing.assert_array_equal(given, [expected])
