"""Trying a part on zeros leaves it alone and says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adasplit_flwr.dry_run import first_float_parameter, try_client, try_part
from zerofl_flwr.errors import SettingsError


class Noting(nn.Module):
    """Counts its calls, draws a number, writes into its input, and returns what it is told."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.drop = nn.Dropout()
        self.answer = answer
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        if self.training or x.requires_grad:
            raise RuntimeError("not a trial")
        return x.add_(torch.rand(1)) if self.answer is None else self.answer


def test_nothing_is_changed() -> None:
    part, batch = Noting(), torch.zeros(2, 3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    output = try_part(part, "client", batch)
    assert output.shape == (2, 3)
    assert not output.requires_grad
    assert part.calls == 0
    assert part.training
    assert part.drop.training
    assert torch.equal(batch, torch.zeros(2, 3))
    assert torch.equal(torch.get_rng_state(), before)


def test_batch_norm_learns_nothing_from_a_trial() -> None:
    norm = nn.BatchNorm2d(3)
    try_client(norm, (3, 4, 4))
    assert norm.num_batches_tracked == 0
    assert norm.running_var is not None
    assert norm.running_var.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_samples_have_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    assert try_client(nn.Linear(4, 5).to(dtype), (4,)).dtype is dtype


def test_a_part_without_weights_gets_the_default_dtype() -> None:
    assert try_client(nn.Flatten(), (3, 4)).dtype is torch.float32
    assert first_float_parameter(nn.Flatten()) is None


@pytest.mark.parametrize("bad", [(), (0, 3), (3, -1), (3, 2.0), (True,), [3, 4], 3, None, "3"])
def test_sample_shapes_that_are_none(bad: Any) -> None:
    with pytest.raises(SettingsError, match=r"sample_shape is .*; it must be a tuple of whole"):
        try_client(nn.Flatten(), bad)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1, 2], r"must return a tensor for a batch of shape \(2, 3\), it returned list"),
        (torch.zeros(2, 3, dtype=torch.long), "must return floats .* returned torch.int64"),
        (torch.zeros(2, 3, dtype=torch.complex64), "must return floats"),
        (torch.zeros(1, 3), r"each of the 2 samples .* returned shape \(1, 3\)"),
        (torch.zeros(6), r"each of the 2 samples .* returned shape \(6,\)"),
        (torch.zeros(2), r"returned shape \(2,\)"),
        (torch.zeros(()), r"returned shape \(\)"),
        (torch.zeros(2, 0), r"returned shape \(2, 0\)"),
    ],
)
def test_answers_that_are_refused(answer: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^the server of the split .*{message}"):
        try_part(Noting(answer), "server", torch.zeros(2, 3))


def test_a_failure_names_part_shape_and_reason() -> None:
    with pytest.raises(
        SettingsError, match=r"^the head of .* shape \(2, 5\): .*2x5 and 4x1"
    ) as info:
        try_part(nn.Linear(4, 1), "head", torch.zeros(2, 5))
    assert isinstance(info.value.__cause__, RuntimeError)


def test_a_part_that_cannot_be_copied() -> None:
    part = nn.Linear(3, 3)
    part.register_buffer("made", part.weight * 2)
    with pytest.raises(SettingsError, match="the client of the split fails"):
        try_part(part, "client", torch.zeros(2, 3))
