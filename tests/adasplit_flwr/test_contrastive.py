"""The client's loss against numbers by hand, a double loop, and awkward batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr.contrastive import nt_xent
from zerofl_flwr.errors import DataError, SettingsError


def by_loops(embeddings: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """The definition, pair by pair; for float64 and embeddings that are not zero."""
    count = len(labels)

    def similarity(i: int, j: int) -> torch.Tensor:
        a, b = embeddings[i], embeddings[j]
        return (a * b).sum() / (a * a).sum().sqrt() / (b * b).sum().sqrt()

    losses = []
    for q in range(count):
        for p in range(count):
            if p == q or labels[p] != labels[q]:
                continue
            positive = torch.exp(similarity(q, p) / temperature)
            denominator = positive
            for k in range(count):
                if labels[k] != labels[q]:
                    denominator = denominator + torch.exp(similarity(q, k) / temperature)
            losses.append(-torch.log(positive / denominator))
    return torch.stack(losses).mean() if losses else embeddings.sum() * 0


def normal(count: int, length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, length, generator=generator, dtype=torch.float64)


def gradient(embeddings: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    leaf = embeddings.clone().requires_grad_()
    nt_xent(leaf, labels, temperature).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return leaf.grad


# The cosines are 0 (a, b), .6 (a, c) and .8 (b, c): ln(1 + e^.6) and ln(1 + e^.8), halved.
ONE_NEGATIVE = ([[1, 0], [0, 1], [3, 4]], [0, 0, 1], 1.0, 1.1042943)
# Of the three positives' six pairs, two each cost ln 2, ln(1 + e^2) and ln(1 + e^-2).
THREE_POSITIVES = ([[1, 0], [0, 1], [-1, 0], [0, -1]], [7, 7, 7, -2], 0.5, 0.9823344)
# Two labels with .8 inside, and 0, -.6, .6 and 0 across: .8 / .07 = 11.43 apart, or 20, or 2.86:
# ln(1 + 1.08801e-5 + 2.06115e-9) twice, ln(1 + .0574326 + 1.08801e-5) twice.
TWO_LABELS = ([[1, 0], [4, 3], [0, 1], [-3, 4]], [5, 5, 9, 9], 0.07, 0.02793254)


@pytest.mark.parametrize("case", [ONE_NEGATIVE, THREE_POSITIVES, TWO_LABELS])
def test_literal_batches(case: tuple[list[list[float]], list[int], float, float]) -> None:
    embeddings, labels, temperature, expected = case
    for dtype in (torch.float32, torch.float64):
        loss = nt_xent(torch.tensor(embeddings, dtype=dtype), torch.tensor(labels), temperature)
        assert loss.shape == ()
        assert loss.dtype is dtype
        assert loss.item() == pytest.approx(expected, abs=1e-7, rel=1e-6)


def test_the_temperature_of_the_paper_is_the_default() -> None:
    embeddings, labels = normal(9, 4, seed=1), torch.tensor([0, 1, 2] * 3)
    assert nt_xent(embeddings, labels) == nt_xent(embeddings, labels, temperature=0.07)


def test_a_literal_gradient() -> None:
    # a = b, k across: both pairs cost ln(1 + e^-1), and its slope is s = 1 / (1 + e) = .2689414.
    # a and b leave k by s/2 each, which pushes k by s along a, divided by its length of 5.
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    found = gradient(embeddings, torch.tensor([0, 0, 1]), 1.0)
    expected = torch.tensor([[0.0, 0.1344707], [0.0, 0.1344707], [0.0537883, 0.0]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


batches = st.integers(0, 9).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(-1, 3), min_size=count, max_size=count),
        st.integers(1, 6),
        st.integers(0, 10**6),
        st.sampled_from([0.07, 0.2, 1.0, 3.0]),
    )
)


@given(batches)
@settings(deadline=None, max_examples=60)
def test_value_and_gradient_agree_with_a_double_loop(
    batch: tuple[list[int], int, int, float],
) -> None:
    listed, length, seed, temperature = batch
    labels = torch.tensor(listed, dtype=torch.long)
    embeddings = normal(len(listed), length, seed).requires_grad_()
    expected = by_loops(embeddings, labels, temperature)
    (expected_gradient,) = torch.autograd.grad(expected, embeddings)
    loss = nt_xent(embeddings, labels, temperature)
    (found_gradient,) = torch.autograd.grad(loss, embeddings)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    scale = 1 + float(expected_gradient.abs().max()) if expected_gradient.numel() else 1.0
    torch.testing.assert_close(found_gradient, expected_gradient, rtol=1e-8, atol=1e-11 * scale)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 2]])
def test_gradient_agrees_with_finite_differences(labels: list[int], temperature: float) -> None:
    embeddings = normal(len(labels), 4, seed=len(set(labels))).requires_grad_()

    def loss(leaf: torch.Tensor) -> torch.Tensor:
        return nt_xent(leaf, torch.tensor(labels), temperature)

    assert torch.autograd.gradcheck(loss, embeddings)


@given(st.integers(2, 40), st.integers(1, 64), st.integers(1, 6), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_float32_is_enough(count: int, length: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    centres = normal(classes, length, seed + 1)
    # From well trained, where the positives' similarity is near 1, to not at all.
    noise = normal(count, length, seed + 2) * 10 ** (seed % 5 - 2)
    exact = (centres[labels] + noise).float().double()
    expected = nt_xent(exact, labels).item()
    assert nt_xent(exact.float(), labels).item() == pytest.approx(expected, rel=1e-5, abs=1e-30)
    exact_gradient = gradient(exact, labels, 0.07)
    error = (gradient(exact.float(), labels, 0.07) - exact_gradient).norm()
    assert float(error) <= 2e-5 * float(exact_gradient.norm()) + 1e-12


@pytest.mark.parametrize("scale", [1e-28, 1e-20, 1e-3, 1e20, 1e37])
def test_only_directions_count(scale: float) -> None:
    embeddings, labels = normal(12, 8, seed=3).float(), torch.tensor([0, 1, 2] * 4)
    expected = nt_xent(embeddings, labels).item()
    assert nt_xent(embeddings * scale, labels).item() == pytest.approx(expected, rel=1e-5)
    expected_gradient = gradient(embeddings, labels, 0.07)
    scaled = gradient(embeddings * scale, labels, 0.07)
    torch.testing.assert_close(
        scaled.double() * scale, expected_gradient.double(), rtol=1e-3, atol=1e-4
    )


def test_rows_of_very_different_length() -> None:
    embeddings, labels = normal(12, 8, seed=3).float(), torch.tensor([0, 1, 2] * 4)
    lengths = 10.0 ** torch.arange(-28, 32, 5)[:, None]
    loss = nt_xent(embeddings * lengths, labels)
    assert loss.item() == pytest.approx(nt_xent(embeddings, labels).item(), rel=1e-5)


@given(st.permutations(range(8)), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_order_and_names_of_labels_do_not_matter(order: list[int], seed: int) -> None:
    embeddings, labels = normal(8, 5, seed), torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
    renamed = torch.tensor([40, -3, 7, 0])[labels]
    loss = nt_xent(embeddings, labels).item()
    assert nt_xent(embeddings[order], renamed[order]).item() == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_any_integer_dtype_of_labels(dtype: torch.dtype) -> None:
    embeddings, labels = normal(6, 3, seed=4), torch.tensor([0, 1, 0, 1, 2, 255])
    assert nt_xent(embeddings, labels.to(dtype)) == nt_xent(embeddings, labels)


@pytest.mark.parametrize(
    "labels", [[], [3], [0, 1], [0, 1, 2, 3], [5, 5], [5, 5, 5]], ids=lambda labels: f"{labels}"
)
def test_no_pair_or_no_negative_costs_nothing(labels: list[int]) -> None:
    embeddings = normal(len(labels), 4, seed=5).float().requires_grad_()
    loss = nt_xent(embeddings, torch.tensor(labels, dtype=torch.long))
    assert loss.item() == 0
    assert math.copysign(1, loss.item()) == 1
    loss.backward()  # type: ignore[no-untyped-call]
    assert embeddings.grad is not None
    assert torch.equal(embeddings.grad, torch.zeros(len(labels), 4))


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-40])
def test_a_vector_without_direction_is_like_nothing_and_is_not_moved(tiny: float) -> None:
    embeddings = torch.tensor([[tiny, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1])
    assert nt_xent(embeddings, labels).item() == pytest.approx(math.log(2))
    found = gradient(embeddings, labels, 0.07)
    assert found.isfinite().all()
    assert found[0].tolist() == [0, 0]
    assert found[2].tolist() != [0, 0]


def test_all_zeros_are_survived() -> None:
    embeddings, labels = torch.zeros(4, 3), torch.tensor([0, 0, 1, 1])
    assert nt_xent(embeddings, labels).item() == pytest.approx(math.log(3))
    assert torch.equal(gradient(embeddings, labels, 0.07), torch.zeros(4, 3))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_is_not_hidden(bad: float) -> None:
    embeddings = normal(4, 3, seed=7)
    embeddings[2, 1] = bad
    assert nt_xent(embeddings, torch.tensor([0, 0, 1, 2])).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    embeddings, labels = normal(8, 4, seed=8).to(dtype), torch.tensor([0, 1] * 4)
    loss = nt_xent(embeddings, labels)
    assert loss.dtype is torch.float32
    assert loss == nt_xent(embeddings.float(), labels)
    assert gradient(embeddings, labels, 0.07).dtype is dtype


def test_nothing_that_was_given_is_changed() -> None:
    embeddings, labels = normal(4, 3, seed=9), torch.tensor([0, 0, 1, 1])
    before = embeddings.clone(), labels.clone()
    assert not nt_xent(embeddings, labels).requires_grad
    assert torch.equal(embeddings, before[0])
    assert torch.equal(labels, before[1])


@pytest.mark.parametrize("temperature", [0, -0.07, math.inf, math.nan, True, "0.07", None])
def test_temperature_must_be_positive(temperature: Any) -> None:
    with pytest.raises(SettingsError, match="it must be a positive number"):
        nt_xent(torch.ones(2, 3), torch.tensor([0, 0]), temperature)


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (torch.ones(2), r"shape \(2,\)"),
        (torch.ones(2, 3, 4), r"shape \(2, 3, 4\)"),
        (torch.ones(2, 0), r"d at least 1.* shape \(2, 0\)"),
        (torch.ones(2, 3, dtype=torch.long), r"torch.int64 of shape \(2, 3\)"),
    ],
)
def test_embeddings_must_be_a_float_matrix(embeddings: torch.Tensor, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        nt_xent(embeddings, torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0.0, 1.0]), "labels must be integers, they are torch.float32"),
        (torch.tensor([False, True]), "labels must be integers, they are torch.bool"),
        (torch.tensor([0, 1, 2]), r"each of 2 embeddings, the labels have shape \(3,\)"),
        (torch.tensor([[0], [1]]), r"each of 2 embeddings, the labels have shape \(2, 1\)"),
        (torch.tensor(1), r"each of 2 embeddings, the labels have shape \(\)"),
    ],
)
def test_labels_must_be_one_integer_each(labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        nt_xent(torch.ones(2, 3), labels)
