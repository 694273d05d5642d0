"""The fast local response normalisation against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from simulations.local_response_norm import LocalResponseNorm
from simulations.networks import lenet

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4))


@given(
    shape=SHAPES,
    size=st.integers(1, 6),
    beta=st.sampled_from([0.75, 0.5, 1.0]),
    k=st.sampled_from([1.0, 2.0]),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_torchs(
    shape: tuple[int, ...], size: int, beta: float, k: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, gradient = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    outcomes = []
    for kind in (LocalResponseNorm, nn.LocalResponseNorm):
        leaf = x.clone().requires_grad_()
        normalised = kind(size, alpha=0.5, beta=beta, k=k)(leaf)
        normalised.backward(gradient)
        assert leaf.grad is not None
        outcomes.append((normalised.detach().numpy(), leaf.grad.numpy()))
    (ours, our_gradient), (theirs, their_gradient) = outcomes
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    np.testing.assert_allclose(our_gradient, their_gradient, rtol=1e-9, atol=1e-12)


def test_one_channel_by_hand() -> None:
    normalised = LocalResponseNorm(4, alpha=4.0, beta=0.5, k=0.0)(torch.tensor([[[3.0], [4.0]]]))
    # Channel 0 sees itself and the one after it, channel 1 itself and the one before.
    assert normalised.flatten().tolist() == pytest.approx([3 / 5, 4 / 5])


def test_gradient_of_float32_is_finite_at_zero() -> None:
    leaf = torch.zeros(1, 4, 2, 2, requires_grad=True)
    LocalResponseNorm(4)(leaf).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


def test_lenet_uses_it_and_computes_what_torchs_would() -> None:
    network = lenet(5).eval()
    plain = lenet(5).eval()
    plain.load_state_dict(network.state_dict())
    for name in ("block1.norm", "block2.norm"):
        plain.set_submodule(name, nn.LocalResponseNorm(4))
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert isinstance(network.block1.norm, LocalResponseNorm)
    torch.testing.assert_close(network(images), plain(images), rtol=1e-5, atol=1e-6)
