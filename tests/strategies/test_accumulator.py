"""Sums of payloads against hand-written arrays, Flower's own sum, and a naive dense computation."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from flwr.common import FitRes, ndarrays_to_parameters
from flwr.server.strategy.aggregate import aggregate_inplace
from numpy.typing import NDArray

from strategies.accumulator import MeanAccumulator
from tests.strategies.federation import OK, Node, f32, same_bits
from zerofl_flwr.payload import (
    Content,
    Entry,
    NotSent,
    SparseArray,
    TensorSpec,
    Values,
    decode,
    encode,
)
from zerofl_flwr.uplink import uplink_entries

Array = NDArray[Any]
CURRENT = np.array([[1, 2], [3, 4]], np.float32)


def sparse(
    positions: list[int],
    values: list[float],
    content: Content = "weights",
    shape: tuple[int, ...] = (2, 2),
) -> Entry:
    return Entry("w", SparseArray.from_indices(positions, f32(values), shape), content)


def mean(
    clients: list[tuple[Entry, int]],
    *,
    senders_only: bool = False,
    current: Array = CURRENT,
    pattern: list[int] | None = None,
) -> Array:
    """Return the mean of a model of one tensor."""
    accumulator = MeanAccumulator(
        [current],
        sum(examples for _, examples in clients),
        senders_only=senders_only,
        patterns=None if pattern is None else {0: np.array(pattern, np.int64)},
    )
    for entry, examples in clients:
        accumulator.add([entry], examples)
    (array,) = accumulator.result()
    assert array.dtype == current.dtype
    assert array.shape == current.shape
    return array


@pytest.mark.parametrize(
    ("content", "senders_only", "expected"),
    [
        # Shares 1/4 and 3/4: position 0 gets 8/4 + 4 * 3/4, position 1 only 2 * 3/4.
        ("weights", False, [[5, 1.5], [0, 0]]),
        ("weights", True, [[5, 2], [3, 4]]),
        ("difference", False, [[1 + 5, 2 + 1.5], [3, 4]]),
        ("difference", True, [[1 + 5, 2 + 2], [3, 4]]),
    ],
)
def test_two_clients_with_different_positions(
    content: Content, senders_only: bool, expected: list[list[float]]
) -> None:
    clients = [(sparse([0], [8], content), 1), (sparse([0, 1], [4, 2], content), 3)]
    np.testing.assert_array_equal(mean(clients, senders_only=senders_only), expected)
    np.testing.assert_array_equal(mean(clients[::-1], senders_only=senders_only), expected)


@pytest.mark.parametrize(
    ("rule", "senders_only", "expected"),
    [
        # After training [5, -6, 0, 1] and [5, 2, 3, -8]; half of each is kept.
        # top-k-weights sends {0: 5, 1: -6} and {0: 5, 3: -8}.
        ("top-k-weights", False, [5, -3, 0, -4]),
        ("top-k-weights", True, [5, -6, 3, -8]),
        # The same positions with differences {0: 4, 1: -8} and {0: 4, 3: -12}.
        ("diff-on-top-k-weights", False, [5, -2, 3, -2]),
        ("diff-on-top-k-weights", True, [5, -6, 3, -8]),
        # Largest differences: {0: 4, 1: -8} (of 4, -8, -3, -3) and {0: 4, 3: -12} (4, 0, 0, -12).
        ("top-k-diff", False, [5, -2, 3, -2]),
        ("top-k-diff", True, [5, -6, 3, -8]),
    ],
)
def test_the_three_rules(rule: str, senders_only: bool, expected: list[float]) -> None:
    before = np.array([1, 2, 3, 4], np.float32)
    clients = []
    for after in ([5, -6, 0, 1], [5, 2, 3, -8]):
        (entry,) = uplink_entries(
            ["w"], [before], [f32(after)], masked=["w"], rule=rule, keep=Decimal("0.5")
        )
        clients.append((entry, 20))
    np.testing.assert_array_equal(
        mean(clients, senders_only=senders_only, current=before), expected
    )


def test_a_position_of_one_client_in_ten_shrinks_to_a_tenth_or_keeps_its_value() -> None:
    clients = [(sparse([3], [10]), 1)] + [(sparse([0], [1]), 1)] * 9
    paper, senders = mean(clients), mean(clients, senders_only=True)
    np.testing.assert_allclose(paper, [[0.9, 0.0], [0.0, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(senders, [[1, 2], [3, 10]], rtol=1e-6)


@pytest.mark.parametrize(("senders_only", "expected"), [(False, 2), (True, 2)])
def test_an_explicit_zero_counts_as_sent(senders_only: bool, expected: float) -> None:
    clients = [(sparse([0], [0]), 1), (sparse([0], [4]), 1)]
    assert mean(clients, senders_only=senders_only)[0, 0] == expected
    alone = mean([(sparse([0, 1], [0, 5]), 1)], senders_only=senders_only)
    assert alone[0].tolist() == [0, 5]


def test_a_zero_filled_array_sends_what_is_not_zero() -> None:
    filled = Entry("w", np.array([[8, 0], [0, 6]], np.float32), "weights", sparse=True)
    clients = [(filled, 1), (sparse([0, 2], [4, 2]), 1)]
    np.testing.assert_array_equal(mean(clients), [[6, 0], [1, 3]])
    np.testing.assert_array_equal(mean(clients, senders_only=True), [[6, 2], [2, 6]])
    filled = Entry("w", np.array([[8, 0], [0, 6]], np.float32), "difference", sparse=True)
    clients = [(filled, 1), (sparse([0, 2], [4, 2], "difference"), 1)]
    np.testing.assert_array_equal(mean(clients), [[7, 2], [4, 7]])
    np.testing.assert_array_equal(mean(clients, senders_only=True), [[7, 2], [5, 10]])


@pytest.mark.parametrize("senders_only", [False, True])
def test_whole_and_partial_weights_together(senders_only: bool) -> None:
    whole = Entry("w", np.array([[8, 8], [8, 8]], np.float32))
    clients = [(whole, 1), (sparse([0], [4]), 3)]
    expected = [[5, 8], [8, 8]] if senders_only else [[5, 2], [2, 2]]
    np.testing.assert_array_equal(mean(clients, senders_only=senders_only), expected)
    np.testing.assert_array_equal(mean(clients[::-1], senders_only=senders_only), expected)


@pytest.mark.parametrize("senders_only", [False, True])
def test_whole_weights_among_differences_are_no_differences(senders_only: bool) -> None:
    # A client that masks nothing sends weights; its difference is [7, 6, 5, 4], its share 1/4.
    whole = Entry("w", np.array([[8, 8], [8, 8]], np.float32))
    clients = [(whole, 1), (sparse([0], [4], "difference"), 3)]
    paper = [[1 + 1.75 + 3, 2 + 1.5], [3 + 1.25, 4 + 1]]
    senders = [[1 + 1.75 + 3, 8], [8, 8]]
    expected = senders if senders_only else paper
    np.testing.assert_array_equal(mean(clients, senders_only=senders_only), expected)
    np.testing.assert_array_equal(mean(clients[::-1], senders_only=senders_only), expected)


@pytest.mark.parametrize("senders_only", [False, True])
def test_values_lie_at_the_pattern(senders_only: bool) -> None:
    clients = [
        (Entry("w", Values((2, 2), f32([8, 0])), "weights"), 1),
        (Entry("w", Values((2, 2), f32([4, 2])), "weights"), 3),
    ]
    current = np.array([[0, 2], [3, 0]], np.float32)
    result = mean(clients, senders_only=senders_only, current=current, pattern=[1, 2])
    np.testing.assert_array_equal(result, [[0, 5], [1.5, 0]])


@pytest.mark.parametrize("senders_only", [False, True])
def test_nobody_sent_keeps_the_old_value(senders_only: bool) -> None:
    current: list[Array] = [CURRENT, np.array(7, np.int64), f32([5])]
    accumulator = MeanAccumulator(current, 10, senders_only=senders_only)
    accumulator.add(
        [
            sparse([], [], "difference"),
            Entry("n", NotSent((), np.dtype(np.int64))),
            Entry("b", f32([6])),
        ],
        10,
    )
    matrix, steps, bias = accumulator.result()
    np.testing.assert_array_equal(matrix, CURRENT)
    assert (steps.dtype, steps.shape, int(steps)) == (np.dtype(np.int64), (), 7)
    np.testing.assert_array_equal(bias, [6])
    assert not np.shares_memory(matrix, CURRENT)
    assert not np.shares_memory(steps, current[1])


@pytest.mark.parametrize("content", ["weights", "difference"])
@pytest.mark.parametrize("senders_only", [False, True])
def test_scalar_and_empty_tensors(content: Content, senders_only: bool) -> None:
    scalar = np.array(3, np.float32)
    clients = [(sparse([0], [8], content, ()), 1), (sparse([0], [4], content, ()), 3)]
    result = mean(clients, senders_only=senders_only, current=scalar)
    assert float(result) == (5 if content == "weights" else 8)
    left_out = [(sparse([], [], content, ()), 1), (sparse([0], [4], content, ()), 3)]
    result = mean(left_out, senders_only=senders_only, current=scalar)
    paper, senders = (3, 4) if content == "weights" else (6, 7)
    assert float(result) == (senders if senders_only else paper)
    empty = np.zeros((3, 0), np.float32)
    clients = [(sparse([], [], content, (3, 0)), 1), (Entry("w", empty), 1)]
    assert mean(clients, senders_only=senders_only, current=empty).size == 0


@pytest.mark.parametrize("senders_only", [False, True])
def test_memory_order_of_a_payload_does_not_matter(senders_only: bool) -> None:
    fortran = np.asfortranarray(np.array([[8, 4], [8, 8]], np.float32))
    clients = [(Entry("w", fortran), 1), (sparse([1], [4]), 1)]
    expected = [[8, 4], [8, 8]] if senders_only else [[4, 4], [4, 4]]
    np.testing.assert_array_equal(mean(clients, senders_only=senders_only), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("senders_only", [False, True])
def test_dense_payloads_give_flowers_mean_bit_for_bit(dtype: str, senders_only: bool) -> None:
    generator = np.random.default_rng(5)
    shapes, examples = [(3, 4), (), (7,), (0,)], [3, 17, 1, 250, 64]
    replies = [[generator.normal(size=shape).astype(dtype) for shape in shapes] for _ in examples]
    replies[0][2][0] = -0.0
    current = [np.ones(shape, dtype) for shape in shapes]
    accumulator = MeanAccumulator(current, sum(examples), senders_only=senders_only)
    for arrays, count in zip(replies, examples, strict=True):
        accumulator.add([Entry(str(i), array) for i, array in enumerate(arrays)], count)
    results = [
        (Node(0), FitRes(OK, ndarrays_to_parameters(arrays), count, {}))
        for arrays, count in zip(replies, examples, strict=True)
    ]
    assert same_bits(accumulator.result(), aggregate_inplace(list(results)))


def test_overflow_is_infinite_without_a_warning() -> None:
    current = np.array([[3e38, 0], [0, 0]], np.float32)
    result = mean([(sparse([0], [3e38], "difference"), 1)], current=current)
    assert np.isinf(result[0, 0])


def test_the_model_is_not_modified() -> None:
    before = CURRENT.copy()
    for content, senders_only in (("weights", True), ("difference", False), ("difference", True)):
        mean([(sparse([0], [8], content), 1)], senders_only=senders_only)  # type: ignore[arg-type]
    np.testing.assert_array_equal(CURRENT, before)


@pytest.mark.parametrize("senders_only", [False, True])
def test_memory_does_not_grow_with_the_clients(senders_only: bool) -> None:
    shape = (200, 1000)
    current = np.zeros(shape, np.float32)
    generator = np.random.default_rng(0)

    def payload() -> list[bytes]:
        where = np.sort(generator.choice(current.size, 40_000, replace=False))
        entry = Entry("w", SparseArray.from_indices(where, np.ones(40_000, np.float32), shape))
        return ndarrays_to_parameters(encode([entry])).tensors

    payloads = [payload() for _ in range(5)]
    payload_bytes = sum(len(array) for array in payloads[0])

    def peak(count: int) -> int:
        tracemalloc.start()
        accumulator = MeanAccumulator([current], count, senders_only=senders_only)
        for index in range(count):
            tensors = payloads[index % len(payloads)]
            decoded = decode(tensors, [TensorSpec(shape, current.dtype)], sender="client 0")
            accumulator.add(decoded.entries, 1)
        accumulator.result()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert payload_bytes > 200_000
    assert abs(peak(50) - peak(5)) < payload_bytes
