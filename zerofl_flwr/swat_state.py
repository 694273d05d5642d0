"""What a sparse layer knows beside its parameters: its top-Ks, their timing, and its backend."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import torch

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.periodic_topk import PeriodicTopK, Timing

BACKENDS = ("reference",)


def check_backend(backend: str) -> str:
    """Return the backend's name, or raise SettingsError naming the nearest that exists."""
    if backend not in BACKENDS:
        raise SettingsError(unknown_name("backend", backend, BACKENDS))
    return backend


@dataclass(frozen=True)
class _MaskedWeight:
    """A masked weight, and what it was made from; `source` is a copy, kept after exact top-Ks."""

    tensor: torch.Tensor
    place: tuple[object, ...]
    version: int
    source: torch.Tensor | None


class LayerState:
    """What one sparse layer knows beside its parameters: three top-Ks and their timing.

    Parameters
    ----------
    name : str
        Qualified name of the layer, for error messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.weights = PeriodicTopK(f"layer {name}, weights")
        self.activations = PeriodicTopK(f"layer {name}, activations")
        self.gradients = PeriodicTopK(f"layer {name}, output gradients")
        self.activations_follow_weights = True
        self.chosen_by_user = False
        self.topk_period = 10
        self._passes = 0
        self._masked: _MaskedWeight | None = None

    def set_sparsities(
        self, weights: Decimal, activations: Decimal | None, gradients: Decimal | None
    ) -> None:
        """Set the fractions and restart; None keeps the old one, or follows the weights."""
        self.weights.sparsity = weights
        if self.activations_follow_weights:
            self.activations.sparsity = weights
        elif activations is not None:
            self.activations.sparsity = activations
        if gradients is not None:
            self.gradients.sparsity = gradients
        self.restart()

    def restart(self) -> None:
        """Forget all thresholds: the next training pass selects exactly."""
        self._passes = 0
        self._masked = None
        for selection in (self.weights, self.activations, self.gradients):
            selection.restart()

    def next_timing(self, training: bool) -> Timing:
        """Say what the coming pass does about thresholds, and count it if it trains."""
        if not training:
            return Timing.EXACT
        due = self._passes % self.topk_period == 0
        self._passes += 1
        return Timing.REFRESH if due else Timing.REUSE

    def masked_weight(
        self, weight: torch.Tensor, frozen: torch.Tensor | None, timing: Timing
    ) -> torch.Tensor:
        """Mask a weight.

        Parameters
        ----------
        weight : Tensor
            The layer's weight.
        frozen : Tensor of bool or None, same shape
            What to keep; None keeps the top-K.
        timing : Timing
            What the pass does about thresholds.

        Returns
        -------
        Tensor, same shape
            Zero outside of the mask; cut from the graph. An exact top-K, as in evaluation, is made
            once for all batches: the weight is held against a copy of it, entry by entry, since
            torch's counter of versions misses what is written through ``.data``. Comparing takes a
            tenth of the time of selecting. In training the weight moves all the time, and a frozen
            mask is applied as fast as compared: these are made anew in each pass, into the same
            memory once the weight has been modified in place, since torch allows no backward pass
            through the older value then.
        """
        if frozen is None and not self.weights.sparsity:
            return weight.detach()
        if weight.is_inference():  # has no version to tell a change by
            return self._mask(weight, frozen, timing, None)
        exact = frozen is None and timing is Timing.EXACT
        place = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight.device)
        old, memory = self._masked, None
        if old is not None and old.place == place:
            if exact and old.source is not None and torch.equal(old.source, weight):
                return old.tensor
            memory = old.tensor if old.version != weight._version else None
        # What is made in inference mode must serve outside of it too.
        with torch.inference_mode(False), torch.no_grad():
            masked = self._mask(weight.detach(), frozen, timing, memory)
            source = weight.detach().clone() if exact else None
            self._masked = _MaskedWeight(masked, place, weight._version, source)
        return masked

    def _mask(
        self,
        weight: torch.Tensor,
        frozen: torch.Tensor | None,
        timing: Timing,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        if frozen is None:
            return self.weights.dense(weight, timing, out)
        return torch.where(frozen, weight, weight.new_zeros(()), out=out)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the masked weight out of copies and files."""
        return self.__dict__ | {"_masked": None}
