"""Exact top-K by magnitude: how many to keep, and which ones.

Every rule of ZeroFL that keeps "the largest" values goes through this file, so that clients,
server and tests agree to the last tie: exactly ``k`` entries are kept, larger magnitudes first, and
among equal magnitudes those with the lowest flat (C-order) index.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zerofl_flwr.errors import SelectionError, SettingsError

FractionLike = Decimal | float | str | int
"""A fraction; read exactly as its shortest decimal text, so that 0.95 means 95/100."""

NAN_FOUND = "found NaN, which has no rank among magnitudes"

_MAX_DECIMAL_PLACES = 400  # the smallest float has 324; more would only make huge integers
_SMALLEST_BRACKETED = 1 << 16  # below this a plain partition is as fast as sampling first
_SAMPLE_SIZE = 1 << 15


def exact_fraction(value: FractionLike, name: str, *, numbers_only: bool = False) -> Decimal:
    """Read a fraction exactly and check it.

    Parameters
    ----------
    value : Decimal, float, str or int
        The fraction. A float counts as the shortest decimal that denotes it.
    name : str
        What the fraction is called in the error message.
    numbers_only : bool
        Refuse what is neither a float nor an int, for a setting that is kept as it came.

    Returns
    -------
    Decimal
        The same fraction, in [0, 1].

    Raises
    ------
    SettingsError
        If the value is no number, not finite, or outside [0, 1].
    """
    if numbers_only and not isinstance(value, int | float):
        raise SettingsError(f"{name} must be a number from 0 to 1, got {value!r}")
    try:
        fraction = Decimal(str(value))
    except InvalidOperation:
        raise SettingsError(f"{name} must be a number from 0 to 1, got {value!r}") from None
    if not fraction.is_finite() or not 0 <= fraction <= 1:
        raise SettingsError(f"{name} must lie between 0 and 1, got {value!r}")
    if int(fraction.as_tuple().exponent) < -_MAX_DECIMAL_PLACES:
        raise SettingsError(f"{name} has more than {_MAX_DECIMAL_PLACES} decimal places")
    return fraction


def count_kept(numel: int, keep: FractionLike) -> int:
    """Count the entries that a kept fraction stands for: ``ceil(keep * numel)``, exactly.

    Parameters
    ----------
    numel : int
        Number of entries, at least 0.
    keep : Decimal, float, str or int
        Fraction to keep, in [0, 1].

    Returns
    -------
    int
        A count in [0, numel].

    Raises
    ------
    SettingsError
        If ``keep`` is no fraction.
    """
    numerator, denominator = exact_fraction(keep, "keep").as_integer_ratio()
    return -(-numerator * numel // denominator)


def count_unmasked(numel: int, sparsity: FractionLike) -> int:
    """Count the entries that a sparsity leaves: ``ceil((1 - sparsity) * numel)``, exactly.

    Parameters
    ----------
    numel : int
        Number of entries, at least 0.
    sparsity : Decimal, float, str or int
        Fraction to drop, in [0, 1] (``sp`` in the ZeroFL paper, section 3).

    Returns
    -------
    int
        A count in [0, numel]; 0.95 of 100 leaves 5.

    Raises
    ------
    SettingsError
        If ``sparsity`` is no fraction.
    """
    numerator, denominator = exact_fraction(sparsity, "sparsity").as_integer_ratio()
    return numel - numerator * numel // denominator


def topk_indices(values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Find the ``k`` entries of largest magnitude.

    Parameters
    ----------
    values : ndarray, any shape, float16, float32 or float64
        The entries; infinities are allowed and rank first.
    k : int
        How many to keep, in [0, values.size].

    Returns
    -------
    ndarray of int64, shape (k,)
        Flat C-order indices, ascending. Ties go to the lowest index.

    Raises
    ------
    SelectionError
        If ``k`` is out of range, the dtype is not floating, or (for ``k > 0``) a value is NaN.
    """
    _check_count(k, values.size)
    if k == 0:
        return np.empty(0, np.int64)
    magnitudes = magnitudes_of(values)
    if k == magnitudes.size:
        return np.arange(k, dtype=np.int64)
    candidates = _candidates(magnitudes, k)
    if candidates is None:
        return np.flatnonzero(_mark_largest(magnitudes, k))
    if candidates.size == k:
        return candidates
    return candidates[_mark_largest(magnitudes[candidates], k)]


def topk_mask(values: torch.Tensor, k: int) -> torch.Tensor:
    """Mark the ``k`` entries of largest magnitude.

    Parameters
    ----------
    values : Tensor, any shape, floating
        The entries. A tensor on the CPU is read in place, without a copy.
    k : int
        How many to mark, in [0, values.numel()].

    Returns
    -------
    Tensor of bool, same shape and device as ``values``, contiguous
        Exactly ``k`` entries are True. Ties go to the lowest logical flat index, whatever the
        strides of ``values`` are.

    Raises
    ------
    SelectionError
        As for :func:`topk_indices`.
    """
    if values.device.type == "cpu":
        flat = torch.zeros(values.numel(), dtype=torch.bool)
        flat.numpy()[topk_indices(as_numpy(values), k)] = True
        return flat.view(values.shape)
    return _device_mask(values, k)


def as_numpy(values: torch.Tensor) -> NDArray[Any]:
    """View a CPU tensor as an array, without a copy except for bfloat16 (which becomes float32).

    Parameters
    ----------
    values : Tensor on the CPU
        Any shape and strides; gradients are not tracked through the view.

    Returns
    -------
    ndarray
        The same entries in the same logical order.
    """
    detached = values.detach()
    if detached.dtype is torch.bfloat16:  # numpy has no such type
        detached = detached.float()
    array: NDArray[Any] = detached.numpy()
    return array


def magnitudes_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return the absolute values, flat in C order, after checking that they can be ranked.

    Parameters
    ----------
    values : ndarray, any shape, float16, float32 or float64
        The entries.

    Returns
    -------
    ndarray, shape (values.size,)
        Magnitudes, float32 for float16 values and of the same dtype otherwise.

    Raises
    ------
    SelectionError
        If the dtype is not floating or a value is NaN.
    """
    if values.dtype.kind != "f":
        raise SelectionError(f"top-K ranks floating-point values, got dtype {values.dtype}")
    if values.dtype.itemsize < 4:  # numpy's float16 arithmetic is an order of magnitude slower
        values = values.astype(np.float32)
    magnitudes: NDArray[Any] = np.abs(values).ravel()
    with np.errstate(invalid="ignore"):
        found_nan = magnitudes.size > 0 and bool(np.isnan(magnitudes.max()))
    if found_nan:
        raise SelectionError(NAN_FOUND)
    return magnitudes


def _check_count(k: int, numel: int) -> None:
    if not 0 <= k <= numel:
        raise SelectionError(f"cannot keep {k} of {numel} entries")


def _candidates(magnitudes: NDArray[Any], k: int) -> NDArray[np.int64] | None:
    """Return indices that surely hold the ``k`` largest, or None where sampling saves nothing.

    Partitioning millions of values to keep a few percent spends its time on the rest. A small
    sample bounds the threshold from below; if the bound was a bad guess, the caller does without.
    """
    if magnitudes.size < _SMALLEST_BRACKETED:
        return None
    # An odd step does not fall in step with channels or rows, whose sizes are mostly even.
    sample = magnitudes[:: (magnitudes.size // _SAMPLE_SIZE) | 1]
    expected_rank = k * sample.size / magnitudes.size
    rank = math.ceil(expected_rank + 4 * math.sqrt(expected_rank) + 8)
    if 2 * rank > sample.size:
        return None
    bound = np.partition(sample, sample.size - rank)[sample.size - rank]
    if bound == 0:
        return _nonzeros_or_first_zeros(magnitudes, k)
    above = magnitudes >= bound
    if not k <= np.count_nonzero(above) <= magnitudes.size // 2:
        return None
    return np.flatnonzero(above)


def _nonzeros_or_first_zeros(magnitudes: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return indices that hold the ``k`` largest where most are zero, as after a sparse aggregate.

    Partitioning millions of equal values takes numpy fifty times as long as unequal ones.
    """
    nonzeros = np.flatnonzero(magnitudes)
    missing = k - nonzeros.size
    if missing <= 0:
        return nonzeros
    zeros = np.flatnonzero(magnitudes == 0)[:missing]
    return np.sort(np.concatenate([nonzeros, zeros]))


def _mark_largest(magnitudes: NDArray[Any], k: int) -> NDArray[np.bool_]:
    """Mark exactly the ``k`` largest of flat magnitudes without NaN, for ``0 < k <= size``."""
    threshold = np.partition(magnitudes, magnitudes.size - k)[magnitudes.size - k]
    marked: NDArray[np.bool_] = magnitudes >= threshold
    surplus = int(np.count_nonzero(marked)) - k
    if surplus:
        marked[np.flatnonzero(magnitudes == threshold)[-surplus:]] = False
    return marked


def _device_threshold(values: torch.Tensor, k: int) -> float:
    """Find the threshold with torch operations, where the tensor is."""
    _check_count(k, values.numel())
    if not values.is_floating_point():
        raise SelectionError(f"top-K ranks floating-point values, got dtype {values.dtype}")
    if k == 0:
        return math.inf
    magnitudes = values.detach().abs().flatten()
    if bool(magnitudes.isnan().any()):
        raise SelectionError(NAN_FOUND)
    return float(magnitudes.kthvalue(magnitudes.numel() - k + 1).values)


def _device_mask(values: torch.Tensor, k: int) -> torch.Tensor:
    """Mark the ``k`` largest with torch operations, where the tensor is."""
    threshold = _device_threshold(values, k)
    if k == 0:
        return torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    magnitudes = values.detach().abs().flatten()
    marked = magnitudes >= threshold
    surplus = int(marked.sum()) - k
    if surplus:
        marked[(magnitudes == threshold).nonzero().flatten()[-surplus:]] = False
    return marked.view(values.shape)
