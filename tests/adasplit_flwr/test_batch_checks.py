"""Batches that the server cannot learn from."""

from __future__ import annotations

import math
import re

import pytest
import torch

from adasplit_flwr.batch_checks import (
    blamed_on,
    check_activations,
    check_gradients,
    check_labels,
    finite_loss,
)
from zerofl_flwr.errors import ClientFailedError, SettingsError


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, IndexError, TypeError])
def test_what_torch_raises_is_blamed_on_the_client(kind: type[Exception]) -> None:
    with (
        pytest.raises(
            ClientFailedError, match="client 7: the server part does not take its batch: odd"
        ) as caught,
        blamed_on(7),
    ):
        raise kind("odd")
    assert isinstance(caught.value.__cause__, kind)


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), blamed_on(7):
        raise KeyError("ours")


def test_activations_have_the_server_parts_dtype() -> None:
    check_activations(torch.zeros(2, 3), torch.float32)
    with pytest.raises(ValueError, match=r"are torch\.float16, the server part is torch\.float32"):
        check_activations(torch.zeros(2, 3).half(), torch.float32)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(2), "not torch.float32 of (2,)"),
        (torch.zeros(2, 1).long(), "not torch.int64 of (2, 1)"),
        (torch.zeros(3).long(), "activations of shape (2, 4) came with 3 labels"),
        (torch.zeros(0).long(), "activations of shape (2, 4) came with 0 labels"),
    ],
)
def test_labels_are_one_whole_number_an_activation(labels: torch.Tensor, message: str) -> None:
    activations = torch.zeros(2, 4)
    for dtype in (torch.uint8, torch.int32, torch.int64):
        check_labels(torch.zeros(2, dtype=dtype), activations)
    with pytest.raises(ValueError, match=re.escape(message)):
        check_labels(labels, activations)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_is_finite(value: float) -> None:
    assert finite_loss(1, torch.tensor(2.5)) == 2.5
    with pytest.raises(ClientFailedError, match=f"client 1: the loss of its batch is {value}"):
        finite_loss(1, torch.tensor(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e20])
def test_gradients_are_finite_with_their_squares(value: float) -> None:
    good = torch.full((3, 2), 1e15)
    check_gradients(4, [good, good.t()])
    bad = good.clone()
    bad[1, 1] = value
    with pytest.raises(
        ClientFailedError, match="client 4: the gradient of its batch is not finite, or too large"
    ):
        check_gradients(4, [good, bad])
    assert issubclass(ClientFailedError, RuntimeError)
    assert not issubclass(ClientFailedError, SettingsError)
