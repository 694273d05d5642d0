"""Top-K over a stream of tensors, whose magnitude threshold may be reused for a while (SWAT)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch

from zerofl_flwr.errors import SelectionError
from zerofl_flwr.topk import (
    NAN_FOUND,
    as_numpy,
    count_unmasked,
    magnitudes_of,
    topk_indices,
    topk_mask,
)


class Timing(enum.Enum):
    """What one pass does about the threshold."""

    EXACT = "exact"  # exactly K entries; the remembered threshold is left alone
    REFRESH = "refresh"  # exactly K entries; their smallest magnitude is remembered
    REUSE = "reuse"  # everything that reaches the remembered threshold


@dataclass(frozen=True)
class Nonzeros:
    """The entries of a tensor that top-K kept; zeros among them are left out.

    Parameters
    ----------
    values : Tensor, shape (nnz,)
        The kept entries, in the dtype of the tensor.
    positions : Tensor of int32, shape (nnz,)
        Their flat C-order positions, ascending; int64 if the tensor is too large for int32.
    shape : sequence of int
        Shape of the tensor.
    """

    values: torch.Tensor
    positions: torch.Tensor
    shape: Sequence[int]

    def to_dense(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the tensor with everything else zero, shape ``self.shape``.

        Parameters
        ----------
        out : Tensor, contiguous, optional
            Memory to write to.
        """
        if out is None:
            out = torch.empty(self.shape, dtype=self.values.dtype, device=self.values.device)
        out.zero_().view(-1).scatter_(0, self.positions.long(), self.values)
        return out


class PeriodicTopK:
    """Keeps the largest magnitudes of successive tensors of one kind, e.g. one layer's weights.

    Parameters
    ----------
    what : str
        What the tensors are, for error messages, e.g. ``"layer conv1, weights"``.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.sparsity = Decimal(0)
        self._threshold: float | None = None
        self._dtype: torch.dtype | None = None

    def restart(self) -> None:
        """Forget the threshold, so that the next pass selects exactly."""
        self._threshold = None

    def nonzeros(self, values: torch.Tensor, timing: Timing) -> Nonzeros:
        """Select, keeping only the selected entries.

        Parameters
        ----------
        values : Tensor, any shape, floating
            What to select from; left unchanged, and no part of it is aliased.
        timing : Timing
            Whether to select exactly or by the remembered threshold.

        Returns
        -------
        Nonzeros
            ``ceil((1 - sparsity) * numel)`` entries when selected exactly, less the zeros.

        Raises
        ------
        SelectionError
            If a value is NaN.
        """
        values = values.detach()
        threshold = self._reusable_threshold(values, timing)
        try:
            if threshold is not None:
                positions = _positions_from(values, threshold)
                return _gather(values, positions)
            positions = _largest_positions(values, count_unmasked(values.numel(), self.sparsity))
        except SelectionError as error:
            raise SelectionError(f"{self.what}: {error}") from error
        kept = _gather(values, positions)
        if timing is not Timing.EXACT and positions.numel():
            self._threshold = float(kept.values.abs().min())
            self._dtype = values.dtype
        if kept.values.count_nonzero() < positions.numel():
            kept = _gather(values, positions[kept.values != 0])
        return kept

    def dense(
        self, values: torch.Tensor, timing: Timing, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Select, with zeros in the place of what is dropped.

        Parameters
        ----------
        values : Tensor, any shape, floating
            What to select from; left unchanged.
        timing : Timing
            Whether to select exactly or by the remembered threshold.
        out : Tensor, contiguous, optional
            Memory to write to.

        Returns
        -------
        Tensor, same shape and dtype, contiguous
            Cut from the graph. With sparsity 0 this is ``values`` itself, and ``out`` is unused.

        Raises
        ------
        SelectionError
            If a value is NaN.
        """
        if not self.sparsity:
            return values.detach()
        threshold = self._reusable_threshold(values, timing)
        if threshold is None:
            return self.nonzeros(values, timing).to_dense(out)
        kept = _keep_from(values.detach(), threshold, out)
        # Both ways of dropping pass NaN on, and a sum costs far less than looking at each entry.
        if bool(kept.sum().isnan()) and bool(kept.isnan().any()):
            raise SelectionError(f"{self.what}: {NAN_FOUND}")
        return kept

    def _reusable_threshold(self, values: torch.Tensor, timing: Timing) -> float | None:
        if timing is Timing.REUSE and values.dtype is self._dtype:
            return self._threshold
        return None


def _gather(values: torch.Tensor, positions: torch.Tensor) -> Nonzeros:
    narrow = torch.int32 if values.numel() <= torch.iinfo(torch.int32).max else torch.int64
    return Nonzeros(values.reshape(-1)[positions], positions.to(narrow), values.shape)


def _largest_positions(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the int64 flat positions of exactly the ``k`` largest magnitudes, ascending."""
    if values.device.type == "cpu":
        return torch.from_numpy(topk_indices(as_numpy(values), k))
    return topk_mask(values, k).flatten().nonzero().flatten()


def _positions_from(values: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return the int64 flat positions of the non-zeros that reach the threshold, ascending."""
    if values.device.type == "cpu":
        magnitudes = magnitudes_of(as_numpy(values))
        return torch.from_numpy(
            np.flatnonzero(magnitudes >= threshold if threshold else magnitudes)
        )
    flat = values.flatten()
    if bool(flat.isnan().any()):
        raise SelectionError(NAN_FOUND)
    return ((flat.abs() >= threshold) & (flat != 0)).nonzero().flatten()


def _keep_from(values: torch.Tensor, threshold: float, out: torch.Tensor | None) -> torch.Tensor:
    """Zero what lies below the threshold; NaN stays."""
    if out is None:
        out = torch.empty(values.shape, dtype=values.dtype, device=values.device)
    if values.dtype is torch.float32:
        below = float(np.nextafter(np.float32(threshold), np.float32(0)))
    elif values.dtype is torch.float64:
        below = float(np.nextafter(threshold, 0.0))
    else:
        return torch.where(values.abs() < threshold, values.new_zeros(()), values, out=out)
    # The same in one pass over memory instead of three: keep what is larger than the next
    # smaller number.
    kept: torch.Tensor = torch.ops.aten.hardshrink.out(values, below, out=out)
    return kept
