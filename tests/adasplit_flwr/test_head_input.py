"""What the head takes: told by the layers before the cut, or seen in a trial."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adasplit_flwr.head_input import head_input, is_plain_sequence
from zerofl_flwr.errors import SettingsError


class Doubling(nn.Module):
    """Its only child tells 4 channels, and it returns 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return torch.cat([y, y], dim=1)


class Telling(Doubling):
    out_channels = 8


class Reversed(nn.Sequential):
    def forward(self, x: Any) -> Any:
        for child in reversed(list(self)):
            x = child(x)
        return x


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Conv2d(3, 7, 3)], (7, False)),
        ([nn.Conv2d(3, 7, 3), nn.ReLU(), nn.LocalResponseNorm(2), nn.MaxPool2d(2)], (7, False)),
        ([nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.GELU(), nn.Dropout2d()], (7, False)),
        ([nn.Sequential(nn.Conv2d(3, 7, 3), nn.Sequential(nn.ReLU())), nn.Tanh()], (7, False)),
        ([nn.ConvTranspose2d(3, 5, 3), nn.AdaptiveAvgPool2d(1)], (5, False)),
        ([nn.Conv2d(3, 7, 3), nn.Flatten(), nn.Linear(28, 9), nn.PReLU()], (9, True)),
        ([nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout()], (6, True)),
        ([nn.Linear(12, 6), nn.LayerNorm(6), nn.Identity()], (6, True)),
        ([Telling(), nn.ReLU()], (8, False)),
    ],
)
def test_layers_tell_the_width(layers: list[nn.Module], expected: tuple[int, bool]) -> None:
    assert head_input(nn.Sequential(*layers)) == expected


@pytest.mark.parametrize(
    ("layers", "shape", "expected"),
    [
        ([nn.Conv2d(3, 7, 3), nn.Flatten()], (3, 4, 4), (28, True)),
        ([Doubling()], (3, 4, 4), (8, False)),
        ([Reversed(nn.Conv2d(4, 5, 1), nn.Conv2d(3, 4, 1))], (3, 4, 4), (5, False)),
        ([nn.Conv2d(3, 8, 1), nn.PixelShuffle(2)], (3, 4, 4), (2, False)),
        ([nn.Conv2d(3, 8, 1), nn.GLU(1)], (3, 4, 4), (4, False)),
        ([nn.ReLU(), nn.MaxPool2d(2)], (3, 4, 4), (3, False)),
        ([nn.Flatten(), nn.BatchNorm1d(48)], (3, 4, 4), (48, True)),
        ([nn.Conv2d(3, 7, 3), nn.AvgPool2d(2)], (3, 4, 4), (7, False)),
    ],
)
def test_a_trial_shows_it(
    layers: list[nn.Module], shape: tuple[int, ...], expected: tuple[int, bool]
) -> None:
    assert head_input(nn.Sequential(*layers), shape) == expected


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 7, 3), nn.Flatten()],
        [Doubling()],
        [nn.Conv2d(3, 4, 1), Doubling(), nn.ReLU()],
        [Reversed(nn.Conv2d(4, 5, 1), nn.Conv2d(3, 4, 1))],
        [nn.Conv2d(3, 8, 1), nn.PixelShuffle(2)],
        [nn.Conv2d(3, 8, 1), nn.GLU(1)],
        [nn.ReLU(), nn.MaxPool2d(2)],
        [nn.Flatten(), nn.BatchNorm1d(48)],
        [nn.LazyBatchNorm2d()],
        [nn.Conv1d(3, 7, 3), nn.BatchNorm1d(7)],
        [nn.Conv3d(3, 7, 3)],
        [nn.LSTM(3, 7)],
    ],
)
def test_a_width_that_is_not_told_is_asked_for(layers: list[nn.Module]) -> None:
    with pytest.raises(SettingsError, match=r"give sample_shape.*SplitModel\(client, head, server"):
        head_input(nn.Sequential(*layers))


def test_activations_without_a_head_for_them() -> None:
    client = nn.Sequential(nn.Conv1d(3, 7, 3))
    with pytest.raises(SettingsError, match=r"gives \(2, 7, 6\); cut elsewhere, or bring a head"):
        head_input(client, (3, 8))


def test_a_client_that_cannot_run() -> None:
    with pytest.raises(SettingsError, match=r"the client of the split fails .*\(2, 1, 4, 4\)"):
        head_input(nn.Sequential(nn.Conv2d(3, 7, 3)), (1, 4, 4))


def test_plain_sequences() -> None:
    assert is_plain_sequence(nn.Sequential())
    assert is_plain_sequence(type("Named", (nn.Sequential,), {})())
    assert not is_plain_sequence(Reversed())
    assert not is_plain_sequence(nn.ReLU())
