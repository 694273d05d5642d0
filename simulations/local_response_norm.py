"""Local response normalisation, several times as fast as torch's on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable


class LocalResponseNorm(nn.LocalResponseNorm):
    """Normalise each value by those at its place in the neighbouring channels.

    Maps (batch, channels, ...) to the same shape, as ``torch.nn.LocalResponseNorm`` does but for
    rounding, and takes the same arguments. That one pools over a padded copy of the squares, in
    three dimensions, which on a CPU is nearly half of a LeNet's training step; here neighbouring
    channels are added up, and the gradient is one formula. It can be differentiated once.

    >>> norm = LocalResponseNorm(4)
    >>> x = torch.linspace(-1, 1, 6).reshape(1, 6, 1)
    >>> torch.allclose(norm(x), nn.LocalResponseNorm(4)(x))
    True
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise a float tensor of shape (batch, channels, ...)."""
        normalised: torch.Tensor = _Normalise.apply(x, self.size, self.alpha, self.beta, self.k)  # type: ignore[no-untyped-call]
        return normalised


class _Normalise(torch.autograd.Function):
    """``x / (k + alpha / size * sum of squares) ** beta``, the sum over `size` channels."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, size: int, alpha: float, beta: float, k: float
    ) -> torch.Tensor:
        before, after = size // 2, (size - 1) // 2
        base = _sum_over_channels(x * x, before, after).mul_(alpha / size).add_(k)
        factor = _power(base, -beta)
        ctx.save_for_backward(x, base, factor)
        ctx.window, ctx.slope = (before, after), 2 * alpha * beta / size
        return x * factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, base, factor = ctx.saved_tensors
        before, after = ctx.window
        direct = gradient * factor
        # A value acts on those whose window it is in: the window the other way round.
        through_base = _sum_over_channels((direct * x).div_(base), after, before)
        own = direct.addcmul_(through_base, x, value=-ctx.slope)
        return own, None, None, None, None


def _sum_over_channels(values: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """Add to each channel so many before and after it, as far as there are any."""
    total, channels = values.clone(), values.shape[1]
    for distance in range(1, min(before, channels - 1) + 1):
        total[:, distance:] += values[:, :-distance]
    for distance in range(1, min(after, channels - 1) + 1):
        total[:, :-distance] += values[:, distance:]
    return total


def _power(base: torch.Tensor, exponent: float) -> torch.Tensor:
    if exponent == -0.75:  # the usual one: two roots are faster than a power
        root = base.rsqrt()
        return root * root.sqrt()
    return base.pow(exponent)
