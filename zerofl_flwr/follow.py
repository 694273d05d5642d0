"""Give a sparse model the settings of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.sparsify import (
    freeze_masks,
    masked_weight_names,
    set_sparsity,
    set_topk_period,
    unfreeze_masks,
)
from zerofl_flwr.topk import count_unmasked, topk_mask


def follow_plan(model: nn.Module, config: Mapping[str, Any]) -> RoundPlan | None:
    """Make a client's sparse model follow the round: for clients that use the mod.

    Call it in ``fit`` and in ``evaluate``, after the global weights have been loaded into the
    model. It sets the round's sparsities and top-K period; in a frozen round it freezes each mask
    to the top ``1 - sparsity`` of the weights that are in the model now, and in any other round it
    lets them move again. A weight that the global mask keeps but that has become exactly zero is
    no longer among them, and may be replaced; what the mod uploads stays within the global mask.

    Parameters
    ----------
    model : nn.Module
        A model that went through :func:`zerofl_flwr.sparsify`.
    config : mapping of str to scalar
        The config that came with the message. :func:`zerofl_flwr.sparse_uplink` leaves the plan's
        entries in it.

    Returns
    -------
    RoundPlan or None
        The round's plan. None when the config holds none, since the server's strategy is another
        one; the model is then unchanged.

    Raises
    ------
    SettingsError
        If an entry is missing or invalid, or the model has no sparse layer although the plan's
        sparsity is above 0.
    SelectionError
        If a weight is NaN in a frozen round.

    Examples
    --------
    >>> from torch import nn
    >>> from zerofl_flwr import sparsify
    >>> net = sparsify(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)), 0.9)
    >>> follow_plan(net, {"learning-rate": 0.1}) is None
    True
    """
    plan = RoundPlan.from_config(config)
    if plan is not None:
        apply_plan(model, plan)
    return plan


def apply_plan(
    model: nn.Module, plan: RoundPlan, patterns: Mapping[str, NDArray[np.int64]] | None = None
) -> None:
    """Set a round's sparsities and top-K period, and freeze the masks or let them move.

    Parameters
    ----------
    model : nn.Module
        A sparse model with the round's weights.
    plan : RoundPlan
        The round's plan.
    patterns : mapping of str to ndarray of int64, optional
        Flat positions that frozen masks keep, by state_dict key of the weight. Left out, they are
        the top ``1 - sparsity`` of the weights. Not used unless the plan is frozen. A masked weight
        that is not among them keeps following its top-K: other clients do not mask it.

    Raises
    ------
    SettingsError
        As :func:`follow_plan`.
    PayloadError
        If the plan is frozen and `patterns` lacks every masked weight.
    """
    set_sparsity(model, plan.sparsity, plan.activation_sparsity, plan.gradient_sparsity)
    set_topk_period(model, plan.topk_period)
    unfreeze_masks(model)
    if not plan.frozen:
        return
    names = masked_weight_names(model)
    if patterns is not None and names and patterns.keys().isdisjoint(names):
        raise PayloadError(
            "the mask is frozen but this layer came without its pattern, like all that are masked",
            sender="server",
            layer=names[0],
            field="encoding",
        )
    state = model.state_dict()
    masks = {}
    for name in names:
        weight = state[name]
        if patterns is None:
            masks[name] = topk_mask(weight, count_unmasked(weight.numel(), plan.sparsity))
        elif name in patterns:
            masks[name] = _mask_of(weight, patterns[name])
    freeze_masks(model, masks)


def _mask_of(weight: torch.Tensor, pattern: NDArray[np.int64]) -> torch.Tensor:
    """Turn flat positions into a boolean mask of the weight's shape."""
    mask = torch.zeros(weight.numel(), dtype=torch.bool)
    mask[torch.from_numpy(pattern)] = True
    return mask.reshape(weight.shape)
