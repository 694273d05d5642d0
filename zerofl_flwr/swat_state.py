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
    """A masked weight, and what it was made from."""

    tensor: torch.Tensor
    place: tuple[object, ...]
    version: tuple[int, object]
    sample: torch.Tensor
    timing: Timing


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
            Zero outside of the mask; cut from the graph. Computed anew only when needed, and into
            the same memory once the weight has been modified in place: torch allows no backward
            pass through the older value then, and its check of versions holds for ours as well.
        """
        if frozen is None and not self.weights.sparsity:
            return weight.detach()
        if weight.is_inference():  # has no version to tell a change by
            return self._mask(weight, frozen, timing, None)
        place = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight.device)
        mask_version = None if frozen is None else (frozen.data_ptr(), frozen._version)
        version = (weight._version, mask_version)
        sample = _sample(weight)
        old, memory = self._masked, None
        if old is not None and old.place == place:
            changed = old.version != version or not torch.equal(old.sample, sample)
            if not changed and old.timing is timing is not Timing.REFRESH:
                return old.tensor
            memory = old.tensor if old.version[0] != version[0] else None
        # What is made in inference mode must serve outside of it too.
        with torch.inference_mode(False), torch.no_grad():
            masked = self._mask(weight.detach(), frozen, timing, memory)
            self._masked = _MaskedWeight(masked, place, version, sample.clone(), timing)
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


def _sample(weight: torch.Tensor, size: int = 64) -> torch.Tensor:
    """Return a few values: writes through ``.data`` escape the version counter, but not these."""
    flat = weight.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // size)]
