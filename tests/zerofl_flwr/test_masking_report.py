"""The report on what is masked."""

from __future__ import annotations

import torch
from torch import nn

from zerofl_flwr.masking_report import describe_masking, summarise_masking
from zerofl_flwr.sparsify import freeze_masks, sparsify


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 1000, 3), nn.Conv2d(1000, 4, 1),
        nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip


def test_every_layer_has_a_line_with_its_reason() -> None:
    model = sparsify(small_net(), 0.95, activation_sparsity=0.5, gradient_sparsity="0.125")
    freeze_masks(model, {"2.weight": torch.ones(1000, 4, 3, 3, dtype=torch.bool)})
    assert describe_masking(model).splitlines() == [
        "layer  kind         parameters  masked",
        "0      Conv2d               40  no: input layer",
        "1      BatchNorm2d           8  no: normalisation",
        (
            "2      Conv2d           37,000  yes: sparsity of weights 95%, activations 50%,"
            " output gradients 12.5%, mask frozen"
        ),
        "3      Conv2d            4,004  no: 1x1 convolution",
        "5      Linear               10  no: classifier (last layer)",
        "1 of 4 layers masked, 36,000 of 41,062 parameters (87.7%)",
    ]


def test_layers_left_out_by_the_user_say_so() -> None:
    lines = describe_masking(sparsify(small_net(), 0.5, masked=["5"])).splitlines()
    assert [line.split("  ")[-1] for line in lines[1:-1]] == [
        "no: left out by `masked`",
        "no: normalisation",
        "no: left out by `masked`",
        "no: left out by `masked`",
        "yes: sparsity of weights 50%, activations 50%",
    ]


def test_a_plain_model() -> None:
    lines = describe_masking(small_net()).splitlines()
    assert all(line.endswith("no: the model is not sparsified") for line in lines[1:-1])
    assert lines[-1] == "0 of 4 layers masked, 0 of 41,062 parameters (0.0%)"


def test_a_model_that_is_one_layer_or_none() -> None:
    assert describe_masking(nn.Linear(2, 2)).splitlines()[1].startswith("(model)  Linear")
    assert describe_masking(nn.ReLU()).splitlines()[1:] == [
        "0 of 0 layers masked, 0 of 0 parameters (0.0%)"
    ]


def test_layers_added_later_say_so() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    sparsify(model, 0.5)
    model.insert(1, nn.Linear(2, 2))
    assert "no: added after sparsify" in describe_masking(model)


def test_tied_weights_count_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[2].weight = model[1].weight
    sparsify(model, 0.5)
    assert summarise_masking(model) == "2 of 4 layers masked, 9 of 39 parameters (23.1%)"
