"""What a client uploads after training: the three rules of ZeroFL (section 3.2 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError, SelectionError, SettingsError
from zerofl_flwr.naming import did_you_mean, unknown_name
from zerofl_flwr.payload import Content, Entry, NotSent, SparseArray, Values
from zerofl_flwr.topk import FractionLike, count_kept, exact_fraction, topk_indices

RULES = ("top-k-weights", "diff-on-top-k-weights", "top-k-diff")
ALIASES = {"top-k-gradients": "top-k-diff"}


def canonical_rule(name: str) -> str:
    """Return the rule that `name` stands for: one of `RULES`.

    Raises
    ------
    SettingsError
        No rule or alias has this name; the error names the nearest.
    """
    if name in RULES:
        return name
    if name in ALIASES:
        return ALIASES[name]
    raise SettingsError(unknown_name("uplink rule", name, (*RULES, *ALIASES)))


def uploaded_fraction(sparsity: FractionLike, mask_ratio: FractionLike) -> Decimal:
    """Return the fraction of a masked layer that is uploaded: ``rho = min(1, 1 - sp + r)``.

    Computed in exact decimals, so that sparsity 0.9 and mask ratio 0.2 give 0.3.

    Raises
    ------
    SettingsError
        An argument is outside [0, 1].
    """
    sent = 1 - exact_fraction(sparsity, "sparsity") + exact_fraction(mask_ratio, "mask_ratio")
    return min(Decimal(1), sent)


def update_content(rule: str, keep: Decimal) -> Content:
    """Return whether an update under `rule` holds weights or differences.

    With ``keep >= 1`` every rule sends all weights, and averaging is plain FedAvg.
    """
    return "weights" if keep >= 1 or canonical_rule(rule) == "top-k-weights" else "difference"


def select_update(
    rule: str, before: NDArray[Any], after: NDArray[Any], keep: Decimal
) -> NDArray[Any] | SparseArray:
    """Select what is uploaded of one masked tensor.

    ==========================  ===========================  ==================
    rule                        positions: the top `keep`    values
    ==========================  ===========================  ==================
    ``top-k-weights``           of ``|after|``               ``after``
    ``diff-on-top-k-weights``   of ``|after|``               ``after - before``
    ``top-k-diff``              of ``|after - before|``      ``after - before``
    ==========================  ===========================  ==================

    Parameters
    ----------
    rule : str
        One of `RULES`, or an alias.
    before, after : NDArray of float, same shape
        The tensor as received and as trained. Differences are taken in their own data type.
    keep : Decimal
        Fraction to send: ``ceil(keep * size)`` positions exactly, ties to the lowest index.

    Returns
    -------
    SparseArray or NDArray
        The selected positions; `after` itself where ``keep >= 1``.

    Raises
    ------
    SettingsError
        The rule is unknown, or `keep` is negative.
    PayloadError
        `before` and `after` differ in shape or data type.
    SelectionError
        A value of `after`, or a difference to be ranked, is NaN.
    """
    rule = canonical_rule(rule)
    _check_same(before, after)
    _check_no_nan(after)
    if keep >= 1:
        return after
    kept = count_kept(after.size, keep)
    if rule == "top-k-diff":
        difference = _subtract(after, before)
        positions = topk_indices(difference, kept)
        return SparseArray.from_indices(positions, difference.reshape(-1)[positions], after.shape)
    positions = topk_indices(after, kept)
    values = _values_at(positions, before, after, difference=rule != "top-k-weights")
    return SparseArray.from_indices(positions, values, after.shape)


def uplink_entries(
    names: Sequence[str],
    before: Sequence[NDArray[Any]],
    after: Sequence[NDArray[Any]],
    *,
    masked: Collection[str],
    rule: str,
    keep: Decimal,
    patterns: Mapping[str, NDArray[np.int64]] | None = None,
) -> list[Entry]:
    """Select a client's whole update, tensor by tensor.

    Masked tensors are selected by `select_update`, or sent as values at their frozen pattern.
    Other float tensors (biases, BatchNorm and its statistics, unmasked layers) travel dense as
    weights. Integer and bool tensors (``num_batches_tracked``) are not sent.

    Parameters
    ----------
    names : sequence of str
        State-dict keys, in order.
    before, after : sequence of NDArray
        The tensors as received and as trained, in the same order.
    masked : collection of str
        Names of the tensors that `rule` applies to.
    rule : str
        One of `RULES`, or an alias.
    keep : Decimal
        Fraction of each masked tensor to send, as `uploaded_fraction` gives it.
    patterns : mapping of str to int64 NDArray, shape (k,), optional
        Frozen masks: ascending C-order flat positions of masked tensors, known to both sides.
        These tensors send exactly these positions, whatever `keep` says.

    Returns
    -------
    list of Entry
        One per name, in order.

    Raises
    ------
    SettingsError
        The rule is unknown, the lists differ in length, `masked` or `patterns` name a tensor that
        cannot be selected from, or a pattern's positions are not ascending or out of range.
    PayloadError
        A tensor changed its shape or data type in training; names the layer.
    SelectionError
        A tensor holds NaN after training; names the layer.
    """
    rule = canonical_rule(rule)
    patterns = patterns or {}
    if not len(names) == len(before) == len(after):
        raise SettingsError(
            f"{len(names)} names, {len(before)} tensors before and {len(after)} after training: "
            "there must be as many of each"
        )
    _check_names("masked", masked, names)
    _check_names("patterns", patterns, list(masked))
    return [
        _select_entry(name, old, new, name in masked, rule, keep, patterns.get(name))
        for name, old, new in zip(names, before, after, strict=True)
    ]


def _select_entry(
    name: str,
    before: NDArray[Any],
    after: NDArray[Any],
    is_masked: bool,
    rule: str,
    keep: Decimal,
    pattern: NDArray[np.int64] | None,
) -> Entry:
    try:
        _check_same(before, after)
        if after.dtype.kind != "f":
            if is_masked:
                raise SettingsError(f"layer {name} is {after.dtype}; only floats can be masked")
            return Entry(name, NotSent(after.shape, after.dtype))
        if pattern is not None:
            _check_no_nan(after)
            _check_pattern(name, pattern, after.size)
            content = update_content(rule, Decimal(0))
            values = _values_at(pattern, before, after, difference=content == "difference")
            return Entry(name, Values(after.shape, values), content)
        if is_masked:
            data = select_update(rule, before, after, keep)
            return Entry(name, data, update_content(rule, keep))
        _check_no_nan(after)
        return Entry(name, after)
    except SelectionError as error:
        raise SelectionError(f"layer {name}: {error}") from error
    except PayloadError as error:
        raise PayloadError(error.reason, layer=name, field=error.field) from error


def _values_at(
    positions: NDArray[np.int64], before: NDArray[Any], after: NDArray[Any], *, difference: bool
) -> NDArray[Any]:
    values: NDArray[Any] = after.reshape(-1)[positions]
    return _subtract(values, before.reshape(-1)[positions]) if difference else values


def _subtract(after: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    # What overflows is refused later: NaN by the ranking, infinity by the receiver.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(after - before)  # of two scalar tensors, numpy makes a bare scalar


def _check_same(before: NDArray[Any], after: NDArray[Any]) -> None:
    for field in ("shape", "dtype"):
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            raise PayloadError(f"was {old} before training and is {new} after it", field=field)


def _check_no_nan(array: NDArray[Any]) -> None:
    # The sum is NaN if a term is, or if infinities cancel: only then look closer.
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype=np.float32 if array.dtype.itemsize == 2 else None)
    if math.isnan(total) and (count := int(np.isnan(array).sum())):
        raise SelectionError(f"{count} of {array.size} values are NaN after training")


def _check_names(argument: str, given: Collection[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise SettingsError(
                f"{argument} names {name!r}, which is not there{did_you_mean(name, known)}"
            )


def _check_pattern(name: str, pattern: NDArray[np.int64], numel: int) -> None:
    if pattern.ndim != 1 or pattern.dtype.kind not in "iu":
        raise SettingsError(
            f"layer {name}: a pattern is a 1-D integer array, not {pattern.dtype} of shape "
            f"{pattern.shape}"
        )
    if pattern.size and (
        pattern[0] < 0 or pattern[-1] >= numel or (pattern[1:] <= pattern[:-1]).any()
    ):
        raise SettingsError(
            f"layer {name}: the pattern must ascend strictly within 0 to {numel - 1}"
        )
