"""The three uplink rules on literal arrays, and a client's whole update."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError, SelectionError, SettingsError
from zerofl_flwr.payload import Entry, NotSent, SparseArray, Values
from zerofl_flwr.uplink import (
    RULES,
    canonical_rule,
    select_update,
    update_content,
    uplink_entries,
    uploaded_fraction,
)

BEFORE = np.array([[1.0, -4.0, 0.5], [2.0, 0.0, -3.0]], np.float32)
AFTER = np.array([[1.5, -3.5, -2.5], [2.0, 0.25, -3.0]], np.float32)
# after - before:  0.5,   0.5,  -3.0,   0.0, 0.25,  0.0


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def sent(selected: NDArray[Any] | SparseArray) -> tuple[list[int], list[float]]:
    assert isinstance(selected, SparseArray)
    return selected.flat_indices.tolist(), selected.values.tolist()


# The largest |after| are -3.5 (position 1), -3.0 (5), -2.5 (2); the largest |difference| -3.0 (2),
# then 0.5 twice (0 and 1).
@pytest.mark.parametrize(
    ("rule", "keep", "positions", "values"),
    [
        ("top-k-weights", "0.5", [1, 2, 5], [-3.5, -2.5, -3.0]),
        ("diff-on-top-k-weights", "0.5", [1, 2, 5], [0.5, -3.0, 0.0]),
        ("top-k-diff", "0.5", [0, 1, 2], [0.5, 0.5, -3.0]),
        ("top-k-gradients", "0.5", [0, 1, 2], [0.5, 0.5, -3.0]),
        # ceil(0.2 * 6) = 2: the tie of 0.5 goes to the lower position.
        ("top-k-weights", "0.2", [1, 5], [-3.5, -3.0]),
        ("diff-on-top-k-weights", "0.2", [1, 5], [0.5, 0.0]),
        ("top-k-diff", "0.2", [0, 2], [0.5, -3.0]),
        ("top-k-weights", "0", [], []),
        ("diff-on-top-k-weights", "0", [], []),
        ("top-k-diff", "0", [], []),
    ],
)
def test_literal_selection(rule: str, keep: str, positions: list[int], values: list[float]) -> None:
    selected = select_update(rule, BEFORE, AFTER, Decimal(keep))
    assert sent(selected) == (positions, values)
    assert isinstance(selected, SparseArray)
    assert selected.shape == (2, 3)
    assert selected.dtype == np.float32


@pytest.mark.parametrize("rule", RULES)
def test_a_full_upload_is_the_dense_weights(rule: str) -> None:
    assert select_update(rule, BEFORE, AFTER, Decimal(1)) is AFTER
    assert update_content(rule, Decimal(1)) == "weights"


def test_content_says_what_the_values_are() -> None:
    some = Decimal("0.3")
    assert [update_content(rule, some) for rule in (*RULES, "top-k-gradients")] == [
        "weights",
        "difference",
        "difference",
        "difference",
    ]


def test_ties_go_to_the_lowest_position() -> None:
    ones = np.array([[1, -1], [-1, 1]], np.float32)
    zeros = np.zeros_like(ones)
    for rule in RULES:
        assert sent(select_update(rule, zeros, ones, Decimal("0.5")))[0] == [0, 1]
        assert sent(select_update(rule, zeros, zeros, Decimal("0.5")))[0] == [0, 1]


def test_a_kept_zero_counts_as_sent() -> None:
    assert sent(select_update("top-k-weights", BEFORE, f32(*[0] * 6).reshape(2, 3), Decimal(".4")))[
        1
    ] == [0, 0, 0]


@given(
    arrays=st.tuples(st.integers(1, 40), st.integers(0, 2**32 - 1)),
    keep=st.decimals(0, "0.999", places=3),
    rule=st.sampled_from(RULES),
    dtype=st.sampled_from(("float16", "float32", "float64")),
)
@settings(deadline=None, max_examples=150)
def test_selection_agrees_with_sorting(
    arrays: tuple[int, int], keep: Decimal, rule: str, dtype: str
) -> None:
    size, seed = arrays
    # Few distinct magnitudes, so that ties are common.
    rng = np.random.default_rng(seed)
    before, after = rng.integers(-4, 5, (2, size)).astype(dtype)
    ranked = after - before if rule == "top-k-diff" else after
    values = after if rule == "top-k-weights" else after - before
    kept = -(-int(keep * 1000) * size // 1000)
    best = sorted(range(size), key=lambda i: (-abs(float(ranked[i])), i))[:kept]
    positions, chosen = sent(select_update(rule, before, after, keep))
    assert positions == sorted(best)
    assert chosen == values[sorted(best)].tolist()


@given(
    hnp.arrays(
        np.float32, hnp.array_shapes(max_dims=4, max_side=4), elements=st.floats(-9, 9, width=32)
    )
)
@settings(deadline=None, max_examples=60)
def test_memory_layout_does_not_matter(after: NDArray[np.float32]) -> None:
    before = np.full_like(after, 0.5)
    for rule in RULES:
        expected = sent(select_update(rule, before, after, Decimal("0.4")))
        fortran = select_update(rule, before, np.asfortranarray(after), Decimal("0.4"))
        assert sent(fortran) == expected


def test_differences_stay_in_the_arrays_own_precision() -> None:
    before, after = np.array([[1.0], [4096.0]], np.float16)
    selected = select_update("top-k-diff", before, after, Decimal("0.9"))
    assert isinstance(selected, SparseArray)
    assert selected.dtype == np.float16
    assert selected.values.tolist() == [4096.0]  # float16 has 4094 and 4096, but no 4095


def test_a_scalar_tensor_can_be_selected() -> None:
    before, after = np.array(1.0, np.float32), np.array(3.0, np.float32)
    for rule, value in zip(RULES, (3.0, 2.0, 2.0), strict=True):
        selected = select_update(rule, before, after, Decimal("0.1"))
        assert isinstance(selected, SparseArray)
        assert selected.shape == ()
        assert sent(selected) == ([0], [value])


@pytest.mark.parametrize(
    ("sparsity", "ratio", "expected"),
    [
        (0.95, 0.0, "0.05"),
        (0.9, 0.2, "0.3"),
        (0.95, 0.95, "1"),
        (0.3, 0.9, "1"),
        (1, 0, "0"),
        ("0.95", Decimal("0.1"), "0.15"),
    ],
)
def test_uploaded_fraction_is_exact(sparsity: Any, ratio: Any, expected: str) -> None:
    assert uploaded_fraction(sparsity, ratio) == Decimal(expected)


def test_fractions_outside_zero_and_one_are_refused() -> None:
    with pytest.raises(SettingsError, match="sparsity"):
        uploaded_fraction(1.5, 0)
    with pytest.raises(SettingsError, match="mask_ratio"):
        uploaded_fraction(0.5, -0.1)
    with pytest.raises(SettingsError, match="keep"):
        select_update("top-k-diff", BEFORE, AFTER, Decimal("-0.1"))


def test_rule_names() -> None:
    assert [canonical_rule(rule) for rule in RULES] == list(RULES)
    assert canonical_rule("top-k-gradients") == "top-k-diff"
    with pytest.raises(
        SettingsError, match="unknown uplink rule 'topk-weights'; did you mean 'top-k-weights'"
    ):
        canonical_rule("topk-weights")
    with pytest.raises(SettingsError, match="unknown uplink rule '';"):
        select_update("", BEFORE, AFTER, Decimal(1))


# A small model: a masked weight, an unmasked bias, an integer counter.
NAMES = ["w", "bias", "steps"]
MODEL_BEFORE = [BEFORE, f32(1, 2), np.array(7)]
MODEL_AFTER = [AFTER, f32(3, 4), np.array(9)]


def select(**changes: Any) -> list[Entry]:
    arguments: dict[str, Any] = {
        "names": NAMES,
        "before": MODEL_BEFORE,
        "after": MODEL_AFTER,
        "masked": ["w"],
        "rule": "top-k-diff",
        "keep": Decimal("0.5"),
        **changes,
    }
    names, before, after = (arguments.pop(key) for key in ("names", "before", "after"))
    return uplink_entries(names, before, after, **arguments)


def test_a_whole_update() -> None:
    weight, bias, steps = select()
    assert (weight.name, weight.content) == ("w", "difference")
    assert sent(weight.data) == ([0, 1, 2], [0.5, 0.5, -3.0])  # type: ignore[arg-type]
    assert (bias.name, bias.content, bias.sparse) == ("bias", "weights", False)
    assert bias.data is MODEL_AFTER[1]
    assert steps.data == NotSent((), np.dtype("int64"))


@pytest.mark.parametrize("rule", RULES)
def test_a_whole_update_with_everything_sent(rule: str) -> None:
    weight, _, _ = select(rule=rule, keep=Decimal(1))
    assert weight.data is AFTER
    assert (weight.content, weight.sparse) == ("weights", False)


@pytest.mark.parametrize(
    ("rule", "content", "values"),
    [
        ("top-k-weights", "weights", [1.5, 0.25]),
        ("diff-on-top-k-weights", "difference", [0.5, 0.25]),
        ("top-k-diff", "difference", [0.5, 0.25]),
    ],
)
@pytest.mark.parametrize("keep", ["0", "0.5", "1"])
def test_frozen_patterns_send_values_only(
    rule: str, content: str, values: list[float], keep: str
) -> None:
    patterns = {"w": np.array([0, 4])}
    weight, _, _ = select(rule=rule, keep=Decimal(keep), patterns=patterns)
    assert isinstance(weight.data, Values)
    assert weight.data.shape == (2, 3)
    assert weight.data.values.tolist() == values
    assert weight.data.values.dtype == np.float32
    assert weight.content == content


def test_a_masked_tensor_without_a_pattern_is_selected_as_usual() -> None:
    weight, bias, _ = select(masked=["w", "bias"], patterns={"bias": np.array([1])})
    assert isinstance(weight.data, SparseArray)
    assert isinstance(bias.data, Values)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integers_and_bools_are_not_sent(dtype: str) -> None:
    array = np.ones((2, 2), dtype)
    [entry] = uplink_entries(
        ["x"], [array], [array], masked=[], rule="top-k-diff", keep=Decimal("0.1")
    )
    assert entry.data == NotSent((2, 2), np.dtype(dtype))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "top-k"}, "unknown uplink rule 'top-k'; did you mean 'top-k-diff'"),
        ({"names": ["w", "bias"]}, "2 names, 3 tensors before and 3 after"),
        ({"masked": ["v"]}, "masked names 'v', which is not there; did you mean 'w'"),
        ({"masked": ["steps"]}, "layer steps is int64; only floats can be masked"),
        (
            {"patterns": {"bias": np.array([0])}},
            "patterns names 'bias', which is not there; did you mean 'w'",
        ),
        ({"patterns": {"w": np.array([0, 6])}}, "layer w: .* ascend strictly within 0 to 5"),
        ({"patterns": {"w": np.array([-1, 0])}}, "layer w: .* ascend strictly"),
        ({"patterns": {"w": np.array([2, 2])}}, "layer w: .* ascend strictly"),
        ({"patterns": {"w": np.array([0.0])}}, "layer w: a pattern is a 1-D integer array"),
        ({"patterns": {"w": np.array([[0]])}}, r"layer w: .* of shape \(1, 1\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        select(**changes)


@pytest.mark.parametrize(
    ("position", "array", "message"),
    [
        (0, AFTER.T, r"^layer w, field shape: was \(2, 3\) before training and is \(3, 2\) after"),
        (0, AFTER.astype(np.float64), "^layer w, field dtype: was float32 .* is float64"),
        (1, f32(1, 2, 3), "^layer bias, field shape"),
        (2, np.array(7.0), "^layer steps, field dtype"),
    ],
)
def test_tensors_that_changed_their_form_are_refused(
    position: int, array: NDArray[Any], message: str
) -> None:
    after = [*MODEL_AFTER[:position], array, *MODEL_AFTER[position + 1 :]]
    with pytest.raises(PayloadError, match=message):
        select(after=after)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("keep", ["0", "0.5", "1"])
@pytest.mark.parametrize("patterns", [None, {"w": np.array([0])}])
def test_nan_after_training_names_the_layer(rule: str, keep: str, patterns: Any) -> None:
    broken = AFTER.copy()
    broken[1, 1] = np.nan
    with pytest.raises(SelectionError, match=r"^layer w: 1 of 6 values are NaN after training$"):
        select(rule=rule, keep=Decimal(keep), patterns=patterns, after=[broken, *MODEL_AFTER[1:]])


def test_nan_in_an_unmasked_tensor_is_refused_too() -> None:
    with pytest.raises(SelectionError, match=r"^layer bias: 1 of 2 values are NaN"):
        select(after=[AFTER, f32(1, np.nan), np.array(9)])


def test_differences_that_have_no_rank_are_refused() -> None:
    infinite = np.full_like(AFTER, np.inf)
    with pytest.raises(SelectionError, match=r"^layer w: .*NaN"):
        select(before=[infinite, *MODEL_BEFORE[1:]], after=[infinite, *MODEL_AFTER[1:]])
