"""The vector of a module's trainable parameters, and its pieces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adasplit_flwr import flat_parameters
from adasplit_flwr.flat_parameters import FlatParameters
from zerofl_flwr.errors import SettingsError


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_names_shapes_and_order_are_those_of_named_parameters() -> None:
    flat = FlatParameters(two_layers())
    assert flat.shapes == {"0.weight": (2, 3), "0.bias": (2,), "1.weight": (2,), "1.bias": (2,)}
    assert flat.length == 12
    assert flat.dtype is torch.float32
    shaped = flat.shaped(torch.arange(12.0))
    assert shaped["0.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert shaped["0.bias"].tolist() == [6, 7]
    assert shaped["1.weight"].tolist() == [8, 9]
    assert shaped["1.bias"].tolist() == [10, 11]


def test_frozen_parameters_are_left_out_and_shared_ones_counted_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    first, second, third = model
    first.weight.requires_grad_(False)
    third.weight = second.weight
    assert list(FlatParameters(model).shapes) == ["0.bias", "1.weight", "1.bias", "2.bias"]


def test_pieces_lie_within_one_parameter_and_are_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_parameters, "PIECE", 4)
    model = two_layers()
    flat = FlatParameters(model)
    vector = torch.arange(12.0)
    pieces = flat.pieces(vector)
    assert [piece.tolist() for piece in pieces] == [
        [0, 1, 2, 3], [4, 5], [6, 7], [8, 9], [10, 11],
    ]  # fmt: skip
    pieces[1].fill_(-1.0)
    assert vector.tolist()[:7] == [0, 1, 2, 3, -1, -1, 6]
    assert [len(piece) for piece in flat.weight_pieces] == [4, 2, 2, 2, 2]
    flat.weight_pieces[1].fill_(9.0)
    assert model.get_parameter("0.weight").flatten().tolist()[4:] == [9.0, 9.0]
    transposed = [torch.arange(6.0).view(3, 2).t(), *flat.tensors[1:]]
    assert flat.pieces_of(transposed)[0].tolist() == [0, 2, 4, 1]  # in C order all the same


def test_what_cannot_be_masked_is_refused() -> None:
    frozen = two_layers().requires_grad_(False)
    with pytest.raises(SettingsError, match="has no trainable parameters"):
        FlatParameters(frozen)
    mixed = two_layers()
    mixed[1].double()
    with pytest.raises(
        SettingsError, match=r"1\.weight of the server part is torch\.float64, others are torch\.fl"
    ):
        FlatParameters(mixed)
    with pytest.raises(SettingsError, match=r"0\.weight of the server part is torch\.bfloat16; it"):
        FlatParameters(two_layers().to(torch.bfloat16))
    with pytest.raises(SettingsError, match=r"parameter 0\.weight is on meta"):
        FlatParameters(two_layers().to("meta"))
