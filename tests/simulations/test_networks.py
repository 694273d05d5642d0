from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from simulations.networks import digits_cnn, femnist_cnn, lenet, resnet18


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


def test_lenet_has_the_papers_layers() -> None:
    model = lenet(num_classes=5)
    sizes = {name: p.numel() for name, p in model.named_parameters() if name.endswith("weight")}
    assert sizes == {
        "block1.conv.weight": 20 * 3 * 25,
        "block2.conv.weight": 50 * 20 * 25,
        "block3.fc.weight": 3200 * 800,
        "block4.fc.weight": 800 * 500,
        "fc.weight": 500 * 5,
    }
    # Down and up, for 5 clients and 20 rounds, it is the 2.39 GB of the authors' FedAvg.
    assert count(model) == 2_990_375
    assert round(count(model) * 4 * 2 * 5 * 20 / 1e9, 2) == 2.39


def test_lenet_halves_the_picture_twice() -> None:
    x, shapes = torch.zeros(1, 3, 32, 32), []
    for layer in lenet(num_classes=5):
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(20, 16, 16), (50, 8, 8), (800,), (500,), (5,)]


def test_lenet_block_by_hand() -> None:
    block = lenet(in_channels=1).get_submodule("block1")
    conv = block.get_submodule("conv")
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.zero_()
        conv.get_parameter("weight")[:2, 0, 2, 2] = torch.tensor([100.0, -1.0])
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, 1, 1] = 2.0
    found = block(image)
    # Channel 0 has 200 at (1, 1), over (1 + 1e-4 * 200^2 / 4)^.75 = 2^.75; windows of 3 by 3 around
    # (0, 0), (0, 2), (2, 0) and (2, 2) all see it. Channel 1 has -2, which ReLU takes away.
    torch.testing.assert_close(found[0, 0], torch.full((2, 2), 200 / 2**0.75))
    assert not found[0, 1:].any()


def test_lenet_takes_the_multiply_adds_of_the_authors() -> None:
    model = lenet(num_classes=5)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32))
    convolutions = [1_536_000, 6_400_000]  # 3 * 20 * 25 * 32^2 and 20 * 50 * 25 * 16^2
    assert counter.get_total_flops() == 2 * (sum(convolutions) + 2_560_000 + 400_000 + 2_500)


@pytest.mark.parametrize("size", [32, 28, 8, (5, 6), 1, (33, 31)])
def test_lenet_fits_other_pictures(size: int | tuple[int, int]) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    model = lenet(num_classes=7, in_channels=1, input_size=size)
    assert model(torch.zeros(2, 1, height, width)).shape == (2, 7)


@pytest.mark.parametrize("size", [8, 28, (5, 6)])
def test_digits_cnn_fits_other_pictures(size: int | tuple[int, int]) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    model = digits_cnn(num_classes=7, in_channels=3, input_size=size)
    assert model(torch.zeros(2, 3, height, width)).shape == (2, 7)


def test_digits_cnn_is_small() -> None:
    assert count(digits_cnn()) == 38_282
