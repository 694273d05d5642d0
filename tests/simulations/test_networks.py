from __future__ import annotations

import pytest
import torch
from torch import nn

from simulations.networks import digits_cnn, femnist_cnn, resnet18


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet18_has_the_papers_size() -> None:
    model = resnet18()
    assert count(model) == 11_173_962
    inner = [
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() == 4 and parameter.shape[2:] == (3, 3) and name != "conv1.weight"
    ]
    assert len(inner) == 16
    assert sum(inner) == 10_985_472
    shortcuts = [p for p in model.parameters() if p.dim() == 4 and p.shape[2:] == (1, 1)]
    assert [tuple(p.shape[:2]) for p in shortcuts] == [(128, 64), (256, 128), (512, 256)]


def test_resnet18_halves_the_picture_three_times() -> None:
    model = resnet18(num_classes=12, in_channels=1).eval()
    x = torch.zeros(1, 1, 32, 32)
    shapes = []
    with torch.no_grad():
        for name, layer in model.named_children():
            x = layer(x)
            if name.startswith(("conv", "layer")):
                shapes.append(tuple(x.shape[1:]))
    assert shapes == [
        (64, 32, 32),
        (64, 32, 32),
        (128, 16, 16),
        (256, 8, 8),
        (512, 4, 4),
    ]
    assert x.shape == (1, 12)


def test_residual_block_adds_its_input() -> None:
    block = resnet18().get_submodule("layer1.0").eval()
    for name, parameter in block.named_parameters():
        if "conv" in name:
            nn.init.zeros_(parameter)
    x = torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(block(x), x.relu())


def test_femnist_cnn_has_the_papers_layers() -> None:
    model = femnist_cnn()
    sizes = {name: p.numel() for name, p in model.named_parameters() if name.endswith("weight")}
    assert sizes == {
        "conv1.weight": 32 * 25,
        "conv2.weight": 64 * 32 * 25,
        "fc1.weight": 3136 * 2048,
        "fc2.weight": 2048 * 62,
    }
    assert count(model) == 6_603_710
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 62)


@pytest.mark.parametrize("size", [28, 32, (28, 20), 9])
def test_femnist_cnn_fits_other_pictures(size: int | tuple[int, int]) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    model = femnist_cnn(num_classes=7, in_channels=3, input_size=size)
    assert model(torch.zeros(2, 3, height, width)).shape == (2, 7)


@pytest.mark.parametrize("size", [8, 28, (5, 6)])
def test_digits_cnn_fits_other_pictures(size: int | tuple[int, int]) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    model = digits_cnn(num_classes=7, in_channels=3, input_size=size)
    assert model(torch.zeros(2, 3, height, width)).shape == (2, 7)


def test_digits_cnn_is_small() -> None:
    assert count(digits_cnn()) == 38_282
