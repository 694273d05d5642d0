"""Any federation's sum equals the mean computed from its definition, position by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies.accumulator import MeanAccumulator
from zerofl_flwr.payload import (
    Content,
    Entry,
    SparseArray,
    Values,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Sent:
    """One client's tensor as hypothesis draws it: values, which were sent, and how."""

    values: Array
    sent: NDArray[np.bool_]
    kind: str
    examples: int

    def entry(self, content: Content, pattern: NDArray[np.int64]) -> Entry:
        if self.kind == "whole":
            return Entry("w", self.values)
        if self.kind == "pattern":
            return Entry("w", Values(self.values.shape, self.values.reshape(-1)[pattern]), content)
        if self.kind == "zero-filled":
            filled = np.where(self.sent, self.values, 0)
            return Entry("w", np.asarray(filled, self.values.dtype), content, sparse=True)
        where = np.flatnonzero(self.sent)
        values = self.values.reshape(-1)[where]
        return Entry("w", SparseArray.from_indices(where, values, self.values.shape), content)


@st.composite
def federations(draw: st.DrawFn) -> tuple[Array, Content, NDArray[np.int64], list[Sent]]:
    shape = draw(st.sampled_from([(), (1,), (6,), (0,), (3, 4), (2, 3, 2, 2)]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    content: Content = draw(st.sampled_from(["weights", "difference"]))
    pattern = np.flatnonzero(generator.random(shape) < 0.4)
    in_pattern = np.zeros(shape, np.bool_)
    in_pattern.reshape(-1)[pattern] = True
    clients = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["whole", "csr", "zero-filled", "pattern"]))
        # A zero in a zero-filled array was not sent: keep values off zero there.
        values = np.asarray(generator.normal(size=shape) + (3 if kind == "zero-filled" else 0))
        sent = np.asarray(generator.random(shape) < draw(st.sampled_from([0.0, 0.3, 0.9])))
        if kind == "whole":
            sent = np.ones(shape, np.bool_)
        elif kind == "pattern":
            sent = in_pattern
        clients.append(Sent(values, sent, kind, draw(st.integers(1, 1000))))
    return np.asarray(generator.normal(size=shape)), content, pattern, clients


def naive_mean(current: Array, content: Content, clients: list[Sent], senders: bool) -> Array:
    """Compute the mean from the definition, position by position."""
    result = np.array(current)
    for index in np.ndindex(current.shape):
        numerator, received = 0.0, 0.0
        for client in clients:
            old = float(current[index]) if content == "difference" else 0.0
            value, sent = float(client.values[index]), bool(client.sent[index])
            weight = old + value if content == "difference" and client.kind != "whole" else value
            if sent:
                numerator += client.examples * weight
                received += client.examples
            elif not senders:
                numerator += client.examples * old
        total = received if senders else sum(client.examples for client in clients)
        if total:
            result[index] = numerator / total
    return result


@settings(max_examples=200)
@given(federation=federations(), senders=st.booleans(), dtype=st.sampled_from(["f4", "f8"]))
def test_any_federation_equals_the_naive_mean(
    federation: tuple[Array, Content, NDArray[np.int64], list[Sent]], senders: bool, dtype: str
) -> None:
    current, content, pattern, clients = federation
    accumulator = MeanAccumulator(
        [current.astype(dtype)],
        sum(client.examples for client in clients),
        senders_only=senders,
        patterns={0: pattern},
    )
    for client in clients:
        cast = Sent(client.values.astype(dtype), client.sent, client.kind, client.examples)
        accumulator.add([cast.entry(content, pattern)], client.examples)
    (result,) = accumulator.result()
    assert result.dtype == dtype
    # A position of one sample in thousands is scaled down and up again: a few roundings.
    tolerance = 1e-5 if dtype == "f4" else 1e-11
    expected = naive_mean(current, content, clients, senders)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
