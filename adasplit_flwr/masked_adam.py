"""One Adam for the server's weights and for the mask of the client whose batch it is.

AdaSplit, arXiv 2112.01637: masks and weights are trained together, and a mask's L1 norm is
penalised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.optim.adam import adam

from adasplit_flwr.flat_parameters import FlatParameters
from adasplit_flwr.mask_store import MaskRecord
from zerofl_flwr.errors import SettingsError


@dataclass(frozen=True)
class AdamSettings:
    """Adam as in ``torch.optim.Adam``: weight decay is added to the gradient.

    Parameters
    ----------
    learning_rate : float
        Step size, positive.
    beta1, beta2 : float
        Decay of the first and the second moment, in [0, 1).
    epsilon : float
        Added to the denominator, positive.
    weight_decay : float
        Added to the gradient as ``weight_decay * parameter``; not negative.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        for name in ("learning_rate", "epsilon"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise SettingsError(f"{name} is {value}; it must be a positive number")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise SettingsError(f"{name} is {value}; it must be in [0, 1)")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise SettingsError(f"weight_decay is {self.weight_decay}; it must not be negative")


_SCRATCH_ROWS = 5  # sigmoid and gradient of the mask; what hard masks put back


@dataclass
class _Piece:
    """One piece of the weights, of what belongs to them, and of the active client's mask."""

    gradient: torch.Tensor  # with respect to the effective weights
    weight: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    mask: torch.Tensor
    mask_exp_avg: torch.Tensor
    mask_exp_avg_sq: torch.Tensor


class MaskedAdam:
    """Adam's state for the weights, and its step on them and on one client's mask.

    All is done piece by piece: the masks' gradients and both Adams go over a piece while the cache
    holds it, and nothing of the weights' size is allocated.

    Parameters
    ----------
    weights : FlatParameters
        The trainable parameters W, P elements, changed in place.
    settings : AdamSettings
        For the weights and for the masks alike.
    masks : {"soft", "hard", "none"}
        What a mask does; hard ones protect what they leave out from the step, moments included.
    mask_penalty : float
        Weight of ``sum(sigmoid(m))`` in the loss of the active client's mask m.

    Attributes
    ----------
    learning_rate : float
        Of the next step; as `settings` at first.
    exp_avg, exp_avg_sq : Tensor, shape (P,)
        First and second moment of the weights.
    steps : int
        Steps that the weights have taken.
    """

    def __init__(
        self, weights: FlatParameters, settings: AdamSettings, *, masks: str, mask_penalty: float
    ) -> None:
        self._weights = weights
        self._settings = settings
        self._masks = masks
        self._mask_penalty = mask_penalty
        self.learning_rate = settings.learning_rate
        self.exp_avg = torch.zeros(weights.length, dtype=weights.dtype)
        self.exp_avg_sq = torch.zeros(weights.length, dtype=weights.dtype)
        self.steps = 0
        self._penalty = torch.tensor(mask_penalty, dtype=weights.dtype)
        longest = max(len(piece) for piece in weights.weight_pieces)
        self._scratch = torch.empty(_SCRATCH_ROWS, longest, dtype=weights.dtype)
        self._bits = torch.int64 if weights.dtype is torch.float64 else torch.int32
        self._kept = torch.empty(longest, dtype=self._bits)

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor], record: MaskRecord | None) -> None:
        """Take one step on the weights, and on a client's mask where there are masks.

        Parameters
        ----------
        gradients : sequence of Tensor
            Of the loss without penalty with respect to the effective weights, one a parameter, in
            its shape; finite.
        record : MaskRecord or None
            The active client's, changed in place; None without masks.
        """
        flat = self._weights.pieces_of(gradients)
        if record is None:
            pieces = self._weights.pieces
            self._adam(
                self._weights.weight_pieces,
                flat,
                pieces(self.exp_avg),
                pieces(self.exp_avg_sq),
                [self.steps] * len(flat),
            )
        else:
            for piece in self._cut(flat, record):
                if self._masks == "soft":
                    self._step_soft(piece, record.steps)
                else:
                    self._step_hard(piece, record.steps)
            record.steps += 1
        self.steps += 1

    def _cut(self, gradients: Sequence[torch.Tensor], record: MaskRecord) -> Iterator[_Piece]:
        vectors = (self.exp_avg, self.exp_avg_sq, record.mask, record.exp_avg, record.exp_avg_sq)
        cut = (self._weights.pieces(vector) for vector in vectors)
        for parts in zip(gradients, self._weights.weight_pieces, *cut, strict=True):
            yield _Piece(*parts)

    def _step_soft(self, piece: _Piece, mask_steps: int) -> None:
        """Use d(W sigmoid(m)) = sigmoid(m) dW + W sigmoid'(m) dm."""
        passed, mask_gradient = self._mask_gradient(piece)
        weight_gradient = torch.mul(piece.gradient, passed, out=passed)
        self._step_both(piece, weight_gradient, mask_gradient, mask_steps)

    def _step_hard(self, piece: _Piece, mask_steps: int) -> None:
        """Step as if all were kept, and put back bit by bit what was not."""
        _, mask_gradient = self._mask_gradient(piece)
        length = len(piece.weight)
        kept = torch.gt(piece.mask, 0, out=self._kept[:length]).neg_()  # all bits, or none
        guarded = (piece.weight, piece.exp_avg, piece.exp_avg_sq)
        before = self._scratch[2 : 2 + len(guarded), :length].unbind()
        for old, now in zip(before, guarded, strict=True):
            old.copy_(now)
        self._step_both(piece, piece.gradient, mask_gradient, mask_steps)
        for old, now in zip(before, guarded, strict=True):
            # What torch.where would do, which takes nine times as long.
            was, bits = old.view(self._bits), now.view(self._bits)
            bits.bitwise_xor_(was).bitwise_and_(kept).bitwise_xor_(was)

    def _mask_gradient(self, piece: _Piece) -> tuple[torch.Tensor, torch.Tensor]:
        """Write sigmoid(m) and (gradient * W + penalty) * sigmoid'(m) to the scratch memory."""
        passed, mask_gradient = self._scratch[:2, : len(piece.weight)].unbind()
        torch.sigmoid(piece.mask, out=passed)
        torch.addcmul(self._penalty, piece.gradient, piece.weight, out=mask_gradient)
        torch.ops.aten.sigmoid_backward.grad_input(mask_gradient, passed, grad_input=mask_gradient)
        return passed, mask_gradient

    def _step_both(
        self,
        piece: _Piece,
        weight_gradient: torch.Tensor,
        mask_gradient: torch.Tensor,
        mask_steps: int,
    ) -> None:
        self._adam(
            [piece.weight, piece.mask],
            [weight_gradient, mask_gradient],
            [piece.exp_avg, piece.mask_exp_avg],
            [piece.exp_avg_sq, piece.mask_exp_avg_sq],
            [self.steps, mask_steps],
        )

    def _adam(
        self,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        exp_avgs: list[torch.Tensor],
        exp_avg_sqs: list[torch.Tensor],
        steps: list[int],
    ) -> None:
        """Let torch's fused kernel do it: one pass over memory where the plain one takes ten."""
        adam(
            parameters,
            gradients,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs=[],
            state_steps=list(torch.tensor(steps, dtype=torch.float32).unbind()),
            fused=True,
            amsgrad=False,
            maximize=False,
            lr=self.learning_rate,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            eps=self._settings.epsilon,
            weight_decay=self._settings.weight_decay,
        )
