"""Example models: ResNet-18 for small images, the FEMNIST CNN, LeNet, and one for digits."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import nn

from simulations.local_response_norm import LocalResponseNorm

RESNET_WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to the input or to a 1x1 convolution of it.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels of input and output.
    stride : int
        Stride of the first convolution; the output is so many times smaller.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, in_channels, H, W) to (batch, out_channels, H/stride, W/stride)."""
        inner = self.relu1(self.bn1(self.conv1(x)))
        outer: torch.Tensor = self.relu2(self.bn2(self.conv2(inner)) + self.shortcut(x))
        return outer


def resnet18(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Build ResNet-18 for small images, the ZeroFL paper's model for CIFAR-10 and speech.

    The stem is one 3x3 convolution of stride 1 without pooling. For ten classes and three
    channels it has 11,173,962 parameters, 10,985,472 of them in the sixteen 3x3 convolutions
    behind the stem.

    Parameters
    ----------
    num_classes : int
        Length of the output.
    in_channels : int
        Channels of the images, which may have any size from 8x8; made for 32x32.

    Returns
    -------
    nn.Sequential
        Maps float (batch, in_channels, H, W) to logits (batch, num_classes).
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(in_channels, RESNET_WIDTHS[0], 3, padding=1, bias=False)
    layers["bn1"] = nn.BatchNorm2d(RESNET_WIDTHS[0])
    layers["relu1"] = nn.ReLU()
    width_before = RESNET_WIDTHS[0]
    for number, width in enumerate(RESNET_WIDTHS, start=1):
        layers[f"layer{number}"] = nn.Sequential(
            BasicBlock(width_before, width, stride=1 if number == 1 else 2),
            BasicBlock(width, width, stride=1),
        )
        width_before = width
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(width_before, num_classes)
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def femnist_cnn(
    num_classes: int = 62, in_channels: int = 1, input_size: int | tuple[int, int] = 28
) -> nn.Sequential:
    """Build the ZeroFL paper's model for FEMNIST: two 5x5 convolutions and two linear layers.

    For 62 classes it has 6,603,710 parameters.

    Parameters
    ----------
    num_classes : int
        Length of the output.
    in_channels : int
        Channels of the images.
    input_size : int or (int, int)
        Height and width of the images in pixels, at least 4.

    Returns
    -------
    nn.Sequential
        Maps float (batch, in_channels, H, W) to logits (batch, num_classes).
    """
    height, width = _height_and_width(input_size)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(in_channels, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * (height // 4) * (width // 4), 2048),
            relu3=nn.ReLU(),
            fc2=nn.Linear(2048, num_classes),
        )
    )


def lenet(
    num_classes: int = 10, in_channels: int = 3, input_size: int | tuple[int, int] = 32
) -> nn.Sequential:
    """Build AdaSplit's LeNet: four blocks to cut after, and a last linear layer.

    ``block1`` and ``block2`` are a 5x5 convolution, ReLU, local response normalisation and
    pooling to half the size, rounded up; ``block3`` and ``block4`` are a linear layer and ReLU.
    For five classes and 32x32 images of three channels it has 2,990,375 parameters and takes
    10,898,500 multiply-adds an image.

    Parameters
    ----------
    num_classes : int
        Length of the output.
    in_channels : int
        Channels of the images.
    input_size : int or (int, int)
        Height and width of the images in pixels, at least 1.

    Returns
    -------
    nn.Sequential
        Children ``block1`` to ``block4`` and ``fc``; maps float (batch, in_channels, H, W) to
        logits (batch, num_classes).
    """
    height, width = _height_and_width(input_size)
    features = 50 * math.ceil(height / 4) * math.ceil(width / 4)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            block1=_lenet_block(in_channels, 20),
            block2=_lenet_block(20, 50),
            block3=nn.Sequential(
                OrderedDict[str, nn.Module](
                    flatten=nn.Flatten(), fc=nn.Linear(features, 800), relu=nn.ReLU()
                )
            ),
            block4=nn.Sequential(
                OrderedDict[str, nn.Module](fc=nn.Linear(800, 500), relu=nn.ReLU())
            ),
            fc=nn.Linear(500, num_classes),
        )
    )


def _lenet_block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(in_channels, out_channels, 5, padding=2),
            relu=nn.ReLU(),
            norm=LocalResponseNorm(4),
            pool=nn.MaxPool2d(3, stride=2, padding=1),
        )
    )


def digits_cnn(
    num_classes: int = 10, in_channels: int = 1, input_size: int | tuple[int, int] = 8
) -> nn.Sequential:
    """Build a small model for the 8x8 digits, quick enough for tests and first tries.

    For ten classes it has 38,282 parameters.

    Parameters
    ----------
    num_classes : int
        Length of the output.
    in_channels : int
        Channels of the images.
    input_size : int or (int, int)
        Height and width of the images in pixels, at least 2.

    Returns
    -------
    nn.Sequential
        Maps float (batch, in_channels, H, W) to logits (batch, num_classes).
    """
    height, width = _height_and_width(input_size)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(in_channels, 16, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32 * (height // 2) * (width // 2), 64),
            relu3=nn.ReLU(),
            fc2=nn.Linear(64, num_classes),
        )
    )


def _height_and_width(input_size: int | tuple[int, int]) -> tuple[int, int]:
    return (input_size, input_size) if isinstance(input_size, int) else input_size
