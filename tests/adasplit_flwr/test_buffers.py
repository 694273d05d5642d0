"""Buffers that are put back: always, or when something is raised."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adasplit_flwr.buffers import buffers_restored


class Counting(nn.Module):
    """Has a layer that writes to its buffers, and a buffer that is replaced by another tensor."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("unset", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        output: torch.Tensor = self.norm(x)
        return output


# Means of 20 and 40, of which momentum takes a tenth in.
INPUTS = torch.tensor([[10.0, 20.0], [30.0, 60.0]])
TRAINED = ([2.0, 4.0], 1, 1.0)
FRESH = ([0.0, 0.0], 0, 0.0)


def buffers_of(model: Counting) -> tuple[list[float], int, float]:
    mean, count = model.norm.running_mean, model.norm.num_batches_tracked
    assert mean is not None
    assert count is not None
    return mean.tolist(), int(count), float(model.seen)


def raising(model: Counting, error: BaseException, *, only_on_error: bool) -> None:
    with buffers_restored(model, only_on_error=only_on_error):
        model(INPUTS)
        raise error


def test_buffers_are_put_back_into_their_own_memory() -> None:
    model = Counting()
    own = dict(model.named_buffers())
    with buffers_restored(model):
        model(INPUTS)
        assert buffers_of(model) == TRAINED
    assert buffers_of(model) == FRESH
    assert all(buffer is own[name] for name, buffer in model.named_buffers())
    assert model.unset is None


def test_or_stay_when_nothing_is_raised() -> None:
    model = Counting()
    with buffers_restored(model, only_on_error=True):
        model(INPUTS)
    assert buffers_of(model) == TRAINED


@pytest.mark.parametrize("only_on_error", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_they_are_put_back_when_something_is_raised(
    error: type[BaseException], only_on_error: bool
) -> None:
    model = Counting()
    with pytest.raises(error, match="odd"):
        raising(model, error("odd"), only_on_error=only_on_error)
    assert buffers_of(model) == FRESH
