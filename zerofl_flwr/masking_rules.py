"""Which layers of a model are masked, and why the others are not (ZeroFL paper, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import is_parametrized

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import did_you_mean
from zerofl_flwr.swat import SPARSE_TYPES, SparseLayer

Masked = Callable[[str, nn.Module], bool] | Collection[str]
"""A predicate over (qualified name, module), or the qualified names of the layers to mask."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


def reason_not_maskable(module: nn.Module) -> str | None:
    """Say why a module can never be masked.

    Parameters
    ----------
    module : nn.Module
        Any module, sparse already or not.

    Returns
    -------
    str or None
        The reason; None for a layer that can be masked.
    """
    if isinstance(module, SparseLayer):
        return None
    if isinstance(module, _NORMS):
        return "normalisation"
    if not isinstance(module, (*_CONVOLUTIONS, nn.Linear)):
        return "neither convolution nor linear layer"
    if is_parametrized(module) or not isinstance(module._parameters.get("weight"), nn.Parameter):
        return "its weight is computed, not a parameter"
    if type(module) not in SPARSE_TYPES:
        return "a subclass, whose owner may go around forward"
    return None


def exemptions(model: nn.Module) -> dict[str, str]:
    """Apply the default rules.

    Parameters
    ----------
    model : nn.Module
        Any model.

    Returns
    -------
    dict of str to str
        For every module that is not masked by default, by its qualified name: the reason.
    """
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (*_CONVOLUTIONS, nn.Linear))
    ]
    reasons: dict[str, str] = {}
    for name, module in model.named_modules():
        reason = reason_not_maskable(module)
        if reason is None and name == layers[0]:
            reason = "input layer"
        elif reason is None and name == layers[-1]:
            reason = "classifier (last layer)"
        elif (
            reason is None and isinstance(module, _CONVOLUTIONS) and set(module.kernel_size) == {1}
        ):
            reason = "1x1 convolution"
        if reason is not None:
            reasons[name] = reason
    return reasons


def choose(model: nn.Module, masked: Masked | None) -> set[str]:
    """Decide which layers to mask.

    Parameters
    ----------
    model : nn.Module
        Any model.
    masked : callable, collection of str or None
        See :func:`zerofl_flwr.sparsify`; None applies the default rules.

    Returns
    -------
    set of str
        Qualified names; a module with several names counts under its first.

    Raises
    ------
    SettingsError
        If a name is unknown or denotes something that cannot be masked.
    """
    if masked is None:
        exempt = exemptions(model)
        return {name for name, _ in model.named_modules() if name not in exempt}
    maskable = {
        name: module
        for name, module in model.named_modules()
        if reason_not_maskable(module) is None
    }
    if callable(masked):
        return {name for name, module in maskable.items() if masked(name, module)}
    if isinstance(masked, str):
        raise SettingsError(f"masked must be a collection of layer names, got the text {masked!r}")
    every_name = dict(model.named_modules(remove_duplicate=False))
    for name in masked:
        if name not in every_name:
            hint = did_you_mean(name, maskable)
            raise SettingsError(f"masked names {name!r}, which the model does not have{hint}")
        reason = reason_not_maskable(every_name[name])
        if reason is not None:
            raise SettingsError(f"masked names {name!r}, which cannot be masked: {reason}")
    wanted = {id(every_name[name]) for name in masked}
    return {name for name, module in maskable.items() if id(module) in wanted}
