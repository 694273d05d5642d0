"""Sum many payloads into one mean, one payload at a time (sections 3.2 and 4 of the ZeroFL paper).

The memory is that of the result: one dense accumulator per tensor (and, for ``senders``, the weight
that each position has received), whatever the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.payload import Entry, NotSent, SparseArray, Values

Array = NDArray[Any]


class MeanAccumulator:
    """The weighted mean of clients' updates, as a list of dense arrays.

    The arithmetic per value is Flower's own (scale by the client's share in double precision, round
    to the array's dtype, add), so that dense payloads give FedAvg's result bit for bit. What
    overflows becomes infinite without a warning; the caller has to look for it.

    Parameters
    ----------
    current : sequence of ndarray
        The global model w_t that the clients started from. Not modified.
    total_examples : int
        Samples of all clients that will be added: the denominator of ``all-clients``.
    senders_only : bool
        False: ``w' = sum_k (n_k / n) w_k``, a position that a client left out counts as zero
        (or, for differences, as no change). True: each position is divided by the samples of the
        clients that sent it, and keeps its old value where nobody did.
    patterns : mapping of int to ndarray
        Flat positions (int64, ascending) behind a values-only entry, by position in the list.
    """

    def __init__(
        self,
        current: Sequence[Array],
        total_examples: int,
        *,
        senders_only: bool = False,
        patterns: Mapping[int, NDArray[np.int64]] | None = None,
    ) -> None:
        self._current = current
        self._total = total_examples
        self._senders_only = senders_only
        self._patterns = patterns or {}
        self._sums: list[Array | None] = [None] * len(current)
        # Share of all samples that each position has received; only where some client left it out.
        self._shares: list[Array | None] = [None] * len(current)
        # Share of the clients that sent a whole tensor, and of those among them with weights.
        self._share_of_dense = [0.0] * len(current)
        self._share_of_weights = [0.0] * len(current)
        self._has_differences = [False] * len(current)

    @np.errstate(over="ignore", invalid="ignore")
    def add(self, entries: Sequence[Entry], num_examples: int) -> None:
        """Add one client's decoded payload.

        Parameters
        ----------
        entries : sequence of Entry
            One per tensor of the model, already checked. What is partial at a position must be all
            weights or all differences; whole tensors of weights may be among either.
        num_examples : int
            The client's samples.
        """
        share = np.float64(num_examples / self._total)
        for position, entry in enumerate(entries):
            if isinstance(entry.data, NotSent):
                continue
            where, values = self._sent(position, entry.data, is_partial=entry.sparse)
            # Not empty_like: the sum has to be C-ordered, whatever order the payload came in.
            scaled = np.empty(values.shape, values.dtype)
            np.multiply(values, share, out=scaled, casting="same_kind")
            if where is None:
                self._add_dense(position, scaled, float(share))
            else:
                self._add_sparse(position, where, scaled, float(share))
            if entry.content == "difference":
                self._has_differences[position] = True
            elif where is None:
                self._share_of_weights[position] += float(share)

    @np.errstate(over="ignore", invalid="ignore")
    def result(self) -> list[Array]:
        """Return the mean, in the dtypes of the current model; tensors nobody sent keep theirs."""
        return [self._finished(position) for position in range(len(self._current))]

    def _sent(
        self, position: int, data: Array | SparseArray | Values, *, is_partial: bool
    ) -> tuple[NDArray[np.int64] | None, Array]:
        """Return flat positions, or None for all of them, and the values there."""
        if isinstance(data, SparseArray):
            return data.flat_indices, data.values
        if isinstance(data, Values):
            return self._patterns[position], data.values
        if self._senders_only and is_partial:
            # Travelled zero-filled because CSR would have been larger: non-zeros were sent.
            flat = data.reshape(-1)
            where = np.flatnonzero(flat)
            return where, flat[where]
        return None, data

    def _add_dense(self, position: int, scaled: Array, share: float) -> None:
        total = self._sums[position]
        if total is None:
            self._sums[position] = scaled
        else:
            np.add(total, scaled, out=total)
        self._share_of_dense[position] += share

    def _add_sparse(
        self, position: int, where: NDArray[np.int64], scaled: Array, share: float
    ) -> None:
        current = self._current[position]
        total = self._sums[position]
        if total is None:
            total = self._sums[position] = np.zeros(current.shape, dtype=current.dtype)
        # Positions of one client are distinct, so that fancy indexing adds each of them once.
        total.reshape(-1)[where] += scaled
        if self._senders_only:
            shares = self._shares[position]
            if shares is None:
                shares = self._shares[position] = np.zeros(current.size, dtype=np.float64)
            shares[where] += share

    def _finished(self, position: int) -> Array:
        current, total = self._current[position], self._sums[position]
        if total is None:
            return np.array(current)
        differences = self._has_differences[position]
        update = total
        if differences and (weights := self._share_of_weights[position]):
            # Some clients sent whole weights where others sent differences: w = w_t + (w - w_t).
            update = total - weights * current
        shares = self._shares[position]
        if shares is None:
            mean = current + update if differences else update
        else:
            received = (shares + self._share_of_dense[position]).reshape(current.shape)
            sent = received > 0
            quotient = np.divide(update, received, out=np.zeros(current.shape), where=sent)
            mean = current + quotient if differences else np.where(sent, quotient, current)
        # asarray: the sum of two 0-d arrays is a scalar.
        return np.asarray(mean, dtype=current.dtype)
