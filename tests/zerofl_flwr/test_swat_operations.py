"""The dense arithmetic against torch's own functions, above all the geometry of convolutions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zerofl_flwr.swat_operations import ConvolutionOperation, LinearOperation


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, (2, 3), (3, 4)])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_same_padding_is_torchs(kernel: int | tuple[int, int], dilation: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, kernel, padding="same", dilation=dilation).double()
    operation, border = ConvolutionOperation.of(layer)
    activations = torch.randn(2, 2, 9, 8, dtype=torch.float64)
    assert border == []
    output = operation.forward(activations, layer.weight.detach(), layer.bias)
    torch.testing.assert_close(output, layer(activations), rtol=0, atol=1e-12)


def test_geometry_is_read_from_the_layer() -> None:
    layer = nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    operation, border = ConvolutionOperation.of(layer)
    assert operation == ConvolutionOperation((2, 1), (1, 2), (1, 2), 2, (0, 0))
    assert border == []
    assert ConvolutionOperation.of(nn.Conv1d(1, 1, 4, padding="valid"))[0].padding == (0,)
    even = ConvolutionOperation.of(nn.Conv3d(1, 1, (2, 3, 4), padding="same"))[0]
    assert (even.padding, even.surplus) == ((1, 1, 2), (1, 0, 1))
    reflected, border = ConvolutionOperation.of(
        nn.Conv2d(1, 1, 3, padding=(1, 2), padding_mode="reflect")
    )
    assert (reflected.padding, border) == ((0, 0), [2, 2, 1, 1])


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_only_the_gradients_needed_are_returned(needed: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    activations = torch.randn(2, 3, 5, requires_grad=True)
    weight = torch.randn(4, 3, 3, requires_grad=True)
    operation = ConvolutionOperation((1,), (1,), (1,), 1, (0,))
    output = F.conv1d(activations, weight, padding=1)
    gradient = torch.randn_like(output)
    expected = torch.autograd.grad(output, (activations, weight), gradient)
    found = operation.gradients(
        gradient, activations.detach() if needed[1] else None, (2, 3, 5), weight.detach(), needed
    )
    for want, have, is_needed in zip(expected, found, needed, strict=True):
        if is_needed:
            torch.testing.assert_close(have, want)
        else:
            assert have is None


def test_linear_gradients_of_three_dimensions() -> None:
    torch.manual_seed(0)
    activations = torch.randn(2, 3, 5, requires_grad=True)
    weight, bias = torch.randn(4, 5, requires_grad=True), torch.randn(4, requires_grad=True)
    output = F.linear(activations, weight, bias)
    gradient = torch.randn_like(output)
    expected = torch.autograd.grad(output, (activations, weight, bias), gradient)
    operation = LinearOperation()
    found = operation.gradients(
        gradient, activations.detach(), (2, 3, 5), weight.detach(), (True, True)
    )
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(operation.bias_gradient(gradient), expected[2])
    assert operation.gradients(gradient, None, (2, 3, 5), weight.detach(), (False, False)) == (
        None,
        None,
    )
