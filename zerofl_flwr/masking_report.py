"""Tell in words and numbers what of a model is masked."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from zerofl_flwr.masking_rules import exemptions, reason_not_maskable
from zerofl_flwr.swat import SparseLayer, sparse_layers


def describe_masking(model: nn.Module) -> str:
    """Report what is masked and, for everything else that has parameters, why it is not.

    Parameters
    ----------
    model : nn.Module
        Any model.

    Returns
    -------
    str
        A table with one line a module (name, kind, number of parameters, masking) and a total.
        Parameters are counted where they are first met, so that tied weights count once.
    """
    layers = sparse_layers(model)
    by_user = any(layer.swat.chosen_by_user for layer in layers.values())
    default_reasons = exemptions(model)
    rows = [("layer", "kind", "parameters", "masked")]
    for name, module, parameters in _modules_with_parameters(model):
        kind = type(module).__name__
        if isinstance(module, SparseLayer):
            kind, verdict = module.plain_type.__name__, _settings_of(module)
        elif not layers:
            verdict = "no: the model is not sparsified"
        else:
            reason = reason_not_maskable(module)
            if reason is None:
                reason = "left out by `masked`" if by_user else default_reasons.get(name)
            verdict = f"no: {reason or 'added after sparsify'}"
        rows.append((name or "(model)", kind, f"{parameters:,}", verdict))
    width = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{name:<{width[0]}}  {kind:<{width[1]}}  {parameters:>{width[2]}}  {verdict}"
        for name, kind, parameters, verdict in rows
    ]
    return "\n".join([*lines, summarise_masking(model)])


def summarise_masking(model: nn.Module) -> str:
    """Report in one line how many layers and parameters are masked.

    Parameters
    ----------
    model : nn.Module
        Any model.

    Returns
    -------
    str
        For example ``"16 of 21 layers masked, 10,985,472 of 11,173,962 parameters (98.3%)"``;
        layers are the convolutions and linear ones.
    """
    layers = sparse_layers(model)
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
    candidates = sum(isinstance(module, kinds) for module in model.modules())
    masked = sum({id(layer.weight): layer.weight.numel() for layer in layers.values()}.values())
    total = sum(parameter.numel() for parameter in model.parameters())
    share = 100 * masked / total if total else 0.0
    return (
        f"{len(layers)} of {candidates} layers masked, "
        f"{masked:,} of {total:,} parameters ({share:.1f}%)"
    )


def _settings_of(layer: SparseLayer) -> str:
    state = layer.swat
    text = f"yes: sparsity of weights {state.weights.sparsity:%}"
    text += f", activations {state.activations.sparsity:%}"
    if state.gradients.sparsity:
        text += f", output gradients {state.gradients.sparsity:%}"
    if layer.frozen_mask is not None:
        text += ", mask frozen"
    return text


def _modules_with_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    seen: set[int] = set()
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own:
            new = [parameter for parameter in own if id(parameter) not in seen]
            seen.update(id(parameter) for parameter in new)
            yield name, module, sum(parameter.numel() for parameter in new)
