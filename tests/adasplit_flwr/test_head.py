"""The projection head: sizes, numbers by hand, and what it refuses."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from adasplit_flwr.head import ProjectionHead
from zerofl_flwr.errors import SettingsError


def multiply_adds(head: nn.Module, *shape: int) -> int:
    with FlopCounterMode(display=False) as counter:
        head(torch.zeros(shape))
    return int(counter.get_total_flops()) // 2


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((20, 16, 16), 663_552),  # 20 * 128 * 256 + 128 * 64
        ((50, 8, 8), 417_792),
        ((800,), 221_184),  # 800 * 256 + 256 * 64
        ((500,), 144_384),
    ],
)
def test_work_on_lenets_activations(shape: tuple[int, ...], expected: int) -> None:
    head = ProjectionHead(shape[0], flat=len(shape) == 1)
    assert multiply_adds(head, 1, *shape) == expected
    assert multiply_adds(head, 32, *shape) == 32 * expected


def zeroed(head: ProjectionHead) -> tuple[ProjectionHead, Any, Any]:
    """Set all weights to zero and return the two layers."""
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    return head, cast(Any, head.hidden), head.projection


def test_a_literal_head_for_images() -> None:
    head, hidden, projection = zeroed(ProjectionHead(2, 3, flat=False))
    with torch.no_grad():
        hidden.weight[0, :, 0, 0] = torch.tensor([2.0, -1.0])
        hidden.bias[0] = 0.5
        hidden.weight[127, 1] = -100.0
        projection.weight[0, 0] = 1.0
        projection.weight[1, 127] = 1.0
        projection.bias[2] = 7.0
    images = torch.tensor([[[[1.0, 2.0]], [[3.0, 1.0]]], [[[-1.0, 0.0]], [[1.0, 2.0]]]])
    # Channel 0: 2 * 1 - 3 + .5 = -.5 and 3.5, so 3.5; -2.5 and -1.5, leaky, so -.015.
    # Channel 127: -300 and -100, leaky, so -1; -100 and -200, so -1.
    expected = torch.tensor([[3.5, -1.0, 7.0], [-0.015, -1.0, 7.0]])
    torch.testing.assert_close(head(images), expected)


def test_a_literal_head_for_flat_activations() -> None:
    head, hidden, projection = zeroed(ProjectionHead(2, 2, flat=True))
    with torch.no_grad():
        hidden.weight[255] = torch.tensor([1.0, -1.0])
        projection.weight[:, 255] = torch.tensor([10.0, -1.0])
        projection.bias[1] = 0.25
    found = head(torch.tensor([[3.0, 1.0], [1.0, 2.0]]))
    torch.testing.assert_close(found, torch.tensor([[20.0, -1.75], [-0.1, 0.26]]))


def test_positions_that_tie_share_the_gradient() -> None:
    torch.manual_seed(1)
    head = ProjectionHead(3, flat=False)
    images = torch.ones(1, 3, 2, 5, requires_grad=True)
    head(images).sum().backward()
    assert images.grad is not None
    shares = images.grad.flatten(2)
    torch.testing.assert_close(shares, shares[:, :, :1].expand(1, 3, 10))
    assert shares.abs().min() > 0


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (5, 13)])
def test_height_and_width_are_free(size: tuple[int, int]) -> None:
    head = ProjectionHead(4, 10, flat=False)
    assert head(torch.zeros(3, 4, *size)).shape == (3, 10)


def test_every_weight_learns() -> None:
    torch.manual_seed(1)
    for flat, shape in ((True, (16, 6)), (False, (16, 6, 4, 4))):
        head = ProjectionHead(6, 8, flat=flat)
        head(torch.randn(shape)).square().sum().backward()
        gradients = [parameter.grad for parameter in head.parameters()]
        assert len(gradients) == 4
        assert all(g is not None and g.any() for g in gradients)


@pytest.mark.parametrize(
    ("flat", "shape", "message"),
    [
        (False, (2, 6), r"of shape \(n, C, H, W\), they have shape \(2, 6\)"),
        (False, (6, 4, 4), r"of shape \(n, C, H, W\), they have shape \(6, 4, 4\)"),
        (True, (2, 6, 1, 1), r"of shape \(n, F\), they have shape \(2, 6, 1, 1\)"),
    ],
)
def test_activations_of_another_kind_are_refused(
    flat: bool, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        ProjectionHead(6, flat=flat)(torch.zeros(shape))


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "8", None])
@pytest.mark.parametrize("name", ["width", "projection_dim"])
def test_widths_must_be_whole_numbers(name: str, bad: Any) -> None:
    sizes: dict[str, Any] = {"width": 4, "projection_dim": 4, name: bad}
    with pytest.raises(SettingsError, match=f"{name} of a projection head is {bad!r}"):
        ProjectionHead(**sizes, flat=True)
