"""The run setting ``cut``, and every cut of every built-in model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adasplit_flwr.split import SplitModel, check_split, split_sequential
from simulations.cut_points import CUT_POINTS, cut_children
from simulations.models import BUILT_IN, build_model
from simulations.networks import lenet
from zerofl_flwr.errors import SettingsError

ACTIVATIONS: dict[str, list[tuple[int, ...]]] = {
    "resnet18": [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)],
    "femnist_cnn": [(32, 8, 8), (64, 4, 4), (2048,)],
    "lenet": [(20, 8, 8), (50, 4, 4), (800,), (500,)],
    "digits_cnn": [(16, 16, 16), (32, 8, 8), (64,)],
}
CUTS = [
    (name, number) for name, shapes in ACTIVATIONS.items() for number in range(1, len(shapes) + 1)
]


def test_every_built_in_model_has_cut_points() -> None:
    assert CUT_POINTS.keys() == BUILT_IN.keys()
    assert {name: len(points) for name, points in CUT_POINTS.items()} == {
        name: len(shapes) for name, shapes in ACTIVATIONS.items()
    }


@pytest.mark.parametrize(("name", "number"), CUTS)
def test_every_cut_of_every_built_in_model(name: str, number: int) -> None:
    shape = (3, 16, 16)
    net: Any = build_model(name, 7, shape, seed=number)
    split = split_sequential(net, cut_children(name, str(number)), sample_shape=shape)
    shapes = check_split(split, shape)
    assert shapes.activation == ACTIVATIONS[name][number - 1]
    assert (shapes.projection_dim, shapes.num_outputs) == (64, 7)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    net.eval()
    assert torch.equal(split(x), net(x))


@pytest.mark.parametrize(
    ("name", "cut", "expected"),
    [
        ("lenet", "1", "block1"),
        ("lenet", "4", "block4"),
        ("lenet", "block3", "block3"),
        ("femnist_cnn", "3", "relu3"),
        ("resnet18", "02", "layer2"),
        ("digits_cnn", "pool1", "pool1"),
        ("own.models:net", "1", 1),
        ("own.models:net", "12", 12),
        ("own.models:net", "layer4", "layer4"),
        ("simulations.networks:lenet", "1", 1),
        ("simulations.networks:femnist_cnn", "relu2", "relu2"),
    ],
)
def test_what_a_cut_means(name: str, cut: str, expected: int | str) -> None:
    assert cut_children(name, cut) == expected


@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("lenet", "0", "cut is 0, lenet has the cut points 1 to 4: block1, block2, block3, block4"),
        ("lenet", "5", "cut is 5, lenet has the cut points 1 to 4"),
        ("digits_cnn", "9", "digits_cnn has the cut points 1 to 3: relu1, pool1, relu3"),
        ("lenet", "blok2", "lenet has no cut point 'blok2'; did you mean 'block2'"),
        ("lenet", "fc", "lenet has no cut point 'fc'"),
        ("resnet18", "conv1", "known, smallest client first: layer1, layer2, layer3, layer4"),
        ("lenet", "-1", "no cut point '-1'"),
        ("lenet", "²", "no cut point '²'"),
        ("lenet", "", "cut is ''; it must be a number from 1 or the name of a child"),
        ("lenet", 1, "cut is 1; it must be a number from 1 or the name"),
        ("own.models:net", "", "it must be a number from 1"),
        ("own.models:net", "0", "cut is '0'; at least one child must stay with the client"),
        ("lenets", "1", "unknown model 'lenets'; did you mean 'lenet'.*package.module:function"),
    ],
)
def test_cuts_that_are_refused(name: str, cut: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        cut_children(name, cut)


def lenet_split(cut: int) -> SplitModel:
    return split_sequential(lenet(num_classes=5), cut_children("lenet", str(cut)))


def multiply_adds(split: SplitModel) -> dict[str, int]:
    """Of one image, by part; torch counts a multiply-add as two."""
    found = {}
    with torch.no_grad():
        activations = split.client(torch.zeros(1, 3, 32, 32))
        for name, part, given in (
            ("client", split.client, torch.zeros(1, 3, 32, 32)),
            ("head", split.head, activations),
            ("server", split.server, activations),
        ):
            with FlopCounterMode(display=False) as counter:
                part(given)
            found[name] = int(counter.get_total_flops()) // 2
    return found


def test_lenets_first_cut_has_the_authors_figures() -> None:
    # 1.536 M, 0.6636 M and 9.3625 M in their accounting.
    assert multiply_adds(lenet_split(1)) == {
        "client": 1_536_000,
        "head": 663_552,
        "server": 9_362_500,
    }


@pytest.mark.parametrize(("cut", "teraflop"), [(1, 5.38), (2, 20.45), (3, 26.24), (4, 27.03)])
def test_lenets_cuts_have_the_authors_client_work(cut: int, teraflop: float) -> None:
    found = multiply_adds(lenet_split(cut))
    batches, batch_size = (
        76_500,
        32,
    )  # 765 batches a round of all five clients, 20 rounds of 5 seeds
    assert round((found["client"] + found["head"]) * batch_size * batches / 1e12, 2) == teraflop
    assert found["client"] + found["server"] == 10_898_500
