"""ZeroFL's messages before there are any: as large as in a run, and full of zeros."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.common import FitIns, Scalar

from strategies.blank_messages import blank_parameters, blank_reply, break_down_blank
from strategies.metering import message_bytes
from strategies.traffic import Breakdown
from zerofl_flwr.csr_wire import csr_nbytes
from zerofl_flwr.memory import MEMORY
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npy import npy_nbytes
from zerofl_flwr.payload import (
    Entry,
    NotSent,
    SparseArray,
    TensorSpec,
    Values,
    encode,
    matrix_shape,
)
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.topk import count_kept, count_unmasked
from zerofl_flwr.uplink import update_content, uploaded_fraction


@dataclass(frozen=True)
class Model:
    """A model's arrays, as far as messages depend on them.

    Parameters
    ----------
    names : sequence of str
        State_dict keys.
    specs : sequence of TensorSpec
        Shapes and dtypes, in the same order.
    masked : sequence of int
        Positions of the arrays that train sparse.
    """

    names: Sequence[str]
    specs: Sequence[TensorSpec]
    masked: Sequence[int]

    def kept(self, plan: RoundPlan) -> int:
        """Count the masked weights that a client uploads in a round."""
        return sum(self._kept(position, plan) for position in self.masked)

    def uplink(self, plan: RoundPlan, num_examples: int) -> Breakdown:
        """Return the bytes of a client's reply, by what they are.

        A client whose system does not tell its memory says so much less.
        """
        entries = [self._uploaded(position, plan) for position in range(len(self.names))]
        masked = ",".join(map(str, self.masked))
        arrays = encode(entries, {"round": plan.server_round, "masked": masked})
        metrics: dict[str, Scalar] = {"train_loss": 0.0, "train_seconds": 0.0, MEMORY: 0.0}
        reply = blank_reply(arrays, num_examples, metrics)
        return break_down_blank(reply, **_sorted(entries))

    def downlink(self, plan: RoundPlan, config: Mapping[str, Scalar], *, sparse: bool) -> Breakdown:
        """Return the bytes of the global model's message, by what they are.

        Parameters
        ----------
        plan : RoundPlan
            The round's.
        config : mapping of str to scalar
            What the wrapped strategy puts into the message.
        sparse : bool
            Whether arrays travel as CSR where that is smaller. How many zeros there are is not
            known: the message is at most this large. Indices are then counted as weights.
        """
        dense = [np.zeros(spec.shape, spec.dtype) for spec in self.specs]
        sent = {**config, **plan.to_config()}
        if plan.frozen:
            return self._frozen_downlink(plan, sent)
        plain = FitIns(blank_parameters(dense), sent)
        told = break_down_blank(plain, weights=dense)
        if not sparse:
            return told
        arrays = encode(
            [Entry(n, _barely_sparse(a)) for n, a in zip(self.names, dense, strict=True)],
            {"round": plan.server_round},
        )
        around = message_bytes(FitIns(blank_parameters(arrays), sent)) - _nbytes(arrays)
        # It goes out in this form only if its arrays are smaller than the dense ones together.
        largest = max(message_bytes(plain), _nbytes(dense) - 1 + around)
        return Breakdown(
            weights=told.weights, protocol=largest - told.weights, counted=told.counted
        )

    def _frozen_downlink(self, plan: RoundPlan, config: dict[str, Scalar]) -> Breakdown:
        entries = []
        for position, (name, spec) in enumerate(zip(self.names, self.specs, strict=True)):
            data: Array | SparseArray = np.zeros(spec.shape, spec.dtype)
            if position in self.masked:
                data = _blank_sparse(spec, self._kept(position, plan))
            entries.append(Entry(name, data))
        arrays = encode(entries, {"round": plan.server_round}, force_csr=True)
        message = FitIns(blank_parameters(arrays), config)
        return break_down_blank(message, **_sorted(entries, force_csr=True))

    def _kept(self, position: int, plan: RoundPlan) -> int:
        size = int(np.prod(self.specs[position].shape, dtype=np.int64))
        if plan.frozen:
            return count_unmasked(size, plan.sparsity)
        return count_kept(size, uploaded_fraction(plan.sparsity, plan.mask_ratio))

    def _uploaded(self, position: int, plan: RoundPlan) -> Entry:
        name, spec = self.names[position], self.specs[position]
        if spec.dtype.kind != "f":
            return Entry(name, NotSent(spec.shape, spec.dtype))
        if position not in self.masked:
            return Entry(name, np.zeros(spec.shape, spec.dtype))
        keep, kept = uploaded_fraction(plan.sparsity, plan.mask_ratio), self._kept(position, plan)
        if plan.frozen:
            values = Values(spec.shape, np.zeros(kept, spec.dtype))
            return Entry(name, values, update_content(plan.rule, 0 * keep))
        content = update_content(plan.rule, keep)
        if keep >= 1:
            return Entry(name, np.zeros(spec.shape, spec.dtype), content)
        return Entry(name, _blank_sparse(spec, kept), content)


def _blank_sparse(spec: TensorSpec, nnz: int) -> SparseArray:
    """Return zeros in so many positions, which are not said: for their size alone."""
    indptr = np.zeros(matrix_shape(spec.shape)[0] + 1, np.int32)
    indptr[-1] = nnz
    return SparseArray.from_csr(
        np.zeros(nnz, spec.dtype), np.zeros(nnz, np.int32), indptr, spec.shape
    )


def _barely_sparse(array: Array) -> Array | SparseArray:
    """Return the largest array that CSR makes smaller; an array itself where nothing could."""
    if array.dtype.kind != "f" or array.ndim < 2:
        return array
    nnz = bisect_left(
        range(array.size + 1),
        array.nbytes,
        key=lambda number: csr_nbytes(array.shape, array.dtype, number),
    )
    return _blank_sparse(TensorSpec(array.shape, array.dtype), nnz - 1) if nnz else array


def _sorted(entries: Sequence[Entry], *, force_csr: bool = False) -> dict[str, list[Array]]:
    """Return the arrays of entries by category: behind the values of one are its indices."""
    found: dict[str, list[Array]] = {"weights": [], "indices": []}
    for entry in entries:
        arrays = encode([entry], force_csr=force_csr)[1:]
        found["weights"] += arrays[:1]
        found["indices"] += arrays[1:]
    return found


def _nbytes(arrays: Sequence[Array]) -> int:
    return sum(map(npy_nbytes, arrays))
