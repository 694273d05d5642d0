"""Turn a model's layers into sparse ones, in place, and steer them from round to round.

A layer that is masked keeps its identity, parameters, hooks and state_dict keys; only its class
changes to the sparse twin. So optimisers, checkpoints and Flower's weight lists work as before.

A module that appears under several names is masked once and counts under all of them; a weight
that a sparse layer shares with a plain one is masked in the sparse layer only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.masking_report import describe_masking, summarise_masking
from zerofl_flwr.masking_rules import Masked, choose
from zerofl_flwr.naming import did_you_mean
from zerofl_flwr.swat import SPARSE_TYPES, SparseLayer, sparse_layers
from zerofl_flwr.swat_state import LayerState, check_backend
from zerofl_flwr.topk import FractionLike, exact_fraction

__all__ = [
    "describe_masking",
    "freeze_masks",
    "masked_weight_names",
    "set_sparsity",
    "set_topk_period",
    "sparsify",
    "unfreeze_masks",
]

_log = logging.getLogger("zerofl_flwr")


def sparsify(
    model: nn.Module,
    sparsity: FractionLike,
    *,
    activation_sparsity: FractionLike | None = None,
    gradient_sparsity: FractionLike = 0.0,
    topk_period: int = 10,
    masked: Masked | None = None,
    backend: str = "reference",
) -> nn.Module:
    """Make a model train sparse, as ZeroFL's clients do (paper, section 3).

    Unless ``masked`` says otherwise, every convolution and linear layer is masked except the first
    one, the last one (in order of registration) and 1x1 convolutions; biases and normalisation are
    never masked. Subclasses of torch's layers and parametrised layers are left alone, since their
    owners may go around ``forward``. A model that is sparse already gets the new settings.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    sparsity : Decimal, float, str or int
        Fraction of each masked weight that is treated as zero, in [0, 1].
    activation_sparsity : Decimal, float, str or int, optional
        The same for the activations that weight gradients are computed from; None follows
        ``sparsity``, also when a later round changes it.
    gradient_sparsity : Decimal, float, str or int
        The same for output gradients in the backward pass; bias gradients stay dense.
    topk_period : int
        Training batches from one exact top-K to the next; in between, everything that reaches
        the last threshold counts. 1 selects exactly in every batch.
    masked : callable or collection of str, optional
        Decides alone what is masked: either ``(name, module) -> bool``, asked for each torch
        convolution and linear layer, or the qualified names of the layers.
    backend : str
        ``"reference"``, masked dense operations.

    Returns
    -------
    nn.Module
        The same model.

    Raises
    ------
    SettingsError
        If a fraction, the period or the backend is invalid, ``masked`` names something that cannot
        be masked, or nothing is masked although ``sparsity`` is above 0. The model is then
        unchanged.

    Examples
    --------
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    >>> masked_weight_names(sparsify(net, 0.95))
    ['2.weight']
    """
    weights = exact_fraction(sparsity, "sparsity")
    activations = _optional_fraction(activation_sparsity, "activation_sparsity")
    gradients = exact_fraction(gradient_sparsity, "gradient_sparsity")
    _check_period(topk_period)
    check_backend(backend)
    chosen = choose(model, masked)
    if weights and not chosen:
        raise SettingsError(
            f"sparsity is {weights} but no layer would be masked; "
            "name some with masked=[...], or see describe_masking(model)"
        )
    for name, module in list(model.named_modules()):
        if name in chosen:
            state = _make_sparse(name, module)
            state.chosen_by_user = masked is not None
            state.activations_follow_weights = activations is None
            state.topk_period = topk_period
            state.set_sparsities(weights, activations, gradients)
        elif isinstance(module, SparseLayer):
            _make_plain(module)
    _log.info("sparsity %s: %s", weights, summarise_masking(model))
    return model


def set_sparsity(
    model: nn.Module,
    sparsity: FractionLike,
    activation_sparsity: FractionLike | None = None,
    gradient_sparsity: FractionLike | None = None,
) -> None:
    """Give a sparse model the fractions of a new round; thresholds start afresh.

    Parameters
    ----------
    model : nn.Module
        A model that went through :func:`sparsify`.
    sparsity : Decimal, float, str or int
        As for :func:`sparsify`.
    activation_sparsity : Decimal, float, str or int, optional
        None keeps what was set: the same as ``sparsity`` if that was never given, else the old one.
    gradient_sparsity : Decimal, float, str or int, optional
        None keeps the old one.

    Raises
    ------
    SettingsError
        If a fraction is invalid, or the model has no sparse layer although one is above 0.
    """
    weights = exact_fraction(sparsity, "sparsity")
    activations = _optional_fraction(activation_sparsity, "activation_sparsity")
    gradients = _optional_fraction(gradient_sparsity, "gradient_sparsity")
    layers = sparse_layers(model)
    if not layers and (weights or activations or gradients):
        raise SettingsError("the model has no sparse layer; call sparsify(model, ...) first")
    for layer in layers.values():
        if activations is not None:
            layer.swat.activations_follow_weights = False
        layer.swat.set_sparsities(weights, activations, gradients)


def set_topk_period(model: nn.Module, topk_period: int) -> None:
    """Change the number of training batches from one exact top-K to the next.

    Parameters
    ----------
    model : nn.Module
        A model that went through :func:`sparsify`; a plain one is left alone.
    topk_period : int
        At least 1.

    Raises
    ------
    SettingsError
        If the period is no positive integer.
    """
    _check_period(topk_period)
    for layer in sparse_layers(model).values():
        layer.swat.topk_period = topk_period
        layer.swat.restart()


def masked_weight_names(model: nn.Module) -> list[str]:
    """List the state_dict keys of the masked weights, in state_dict order.

    Parameters
    ----------
    model : nn.Module
        Any model.

    Returns
    -------
    list of str
        Empty for a plain model. The names stay the same while the sparsity is 0.
    """
    masked = _weight_keys(model)
    return [key for key in model.state_dict() if key in masked]


def freeze_masks(model: nn.Module, masks: Mapping[str, torch.Tensor | NDArray[Any]]) -> None:
    """Fix the pattern of some masked weights.

    Their layers use the given masks in place of the top-K of the weights, whatever the sparsity,
    and weights outside of a mask get a zero gradient. Layers without a mask go on as before.

    Parameters
    ----------
    model : nn.Module
        A model that went through :func:`sparsify`.
    masks : mapping of str to Tensor or ndarray of bool
        For each state_dict key of a masked weight, what to keep, in the shape of the weight.

    Raises
    ------
    SettingsError
        If a key is no masked weight, or a mask has another shape or dtype. No mask is changed then.
    """
    layers = _weight_keys(model)
    checked: list[tuple[SparseLayer, torch.Tensor]] = []
    for key, given in masks.items():
        if key not in layers:
            raise SettingsError(
                f"cannot freeze {key!r}, which is no masked weight{did_you_mean(key, layers)}"
            )
        checked.append((layers[key], _as_mask(key, given, layers[key].weight)))
    for layer, mask in checked:
        layer.frozen_mask = mask
        layer.swat.restart()


def unfreeze_masks(model: nn.Module) -> None:
    """Let every masked weight follow its top-K again.

    Parameters
    ----------
    model : nn.Module
        Any model; a plain one is left alone.
    """
    for layer in sparse_layers(model).values():
        layer.frozen_mask = None
        layer.swat.restart()


def _weight_keys(model: nn.Module) -> dict[str, SparseLayer]:
    """Map each state_dict key of a masked weight to its layer."""
    layers = sparse_layers(model, every_name=True)
    return {f"{name}.weight".removeprefix("."): layer for name, layer in layers.items()}


def _make_sparse(name: str, module: nn.Module) -> LayerState:
    if not isinstance(module, SparseLayer):
        # Changing the class keeps the very module: whoever holds it, its hooks and its parameters.
        module.__class__ = SPARSE_TYPES[type(module)]
        module.register_buffer("frozen_mask", None, persistent=False)
    layer, state = cast(SparseLayer, module), LayerState(name)
    layer.swat, layer.frozen_mask = state, None
    return state


def _make_plain(layer: SparseLayer) -> None:
    plain_type = layer.plain_type
    del layer.swat, layer.frozen_mask
    layer.__class__ = plain_type  # type: ignore[assignment]


def _as_mask(key: str, given: torch.Tensor | NDArray[Any], weight: torch.Tensor) -> torch.Tensor:
    """Copy a mask to the weight's device after checking its shape and dtype."""
    shape, dtype = tuple(given.shape), str(given.dtype).removeprefix("torch.")
    if dtype != "bool" or shape != tuple(weight.shape):
        raise SettingsError(
            f"mask of {key!r}: expected bool of shape {tuple(weight.shape)}, got {dtype} of {shape}"
        )
    if isinstance(given, torch.Tensor):
        return given.to(weight.device, copy=True)
    return torch.from_numpy(np.array(given)).to(weight.device)


def _optional_fraction(value: FractionLike | None, name: str) -> Decimal | None:
    return None if value is None else exact_fraction(value, name)


def _check_period(topk_period: object) -> None:
    if type(topk_period) is not int or topk_period < 1:
        raise SettingsError(f"topk_period must be a positive integer, got {topk_period!r}")
