"""What a sample costs AdaSplit's parts: multiply-adds of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from adasplit_flwr.dry_run import try_client
from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel
from zerofl_flwr.costs import StepCosts, step_costs


@dataclass(frozen=True)
class SplitStepCosts:
    """What one sample costs in a training step of each kind, in multiply-adds.

    Parameters
    ----------
    own : StepCosts
        A client's own step: part and head; without a local loss, the part's forward pass alone.
    again : StepCosts
        A client's step with the server's gradient: the part once more, forward and backward.
    server : StepCosts
        The server part's step; with the gradient of its input where that goes back.
    """

    own: StepCosts
    again: StepCosts
    server: StepCosts


def split_step_costs(
    split: SplitModel, sample_shape: tuple[int, ...], settings: AdaSplitSettings
) -> SplitStepCosts:
    """Count what the method's steps cost a sample; see :func:`zerofl_flwr.costs.step_costs`.

    Parameters
    ----------
    split : SplitModel
        The cut network; copies of its parts are tried.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    settings : AdaSplitSettings
        ``local_loss`` and ``server_gradient`` count here.

    Raises
    ------
    SettingsError
        If the shape is none, or a part fails on it.
    """
    activation = tuple(try_client(split.client, sample_shape).shape[1:])
    again = step_costs(split.client, sample_shape)
    own = StepCosts(again.forward, again.forward)  # nothing is trained: forward alone
    if settings.local_loss:
        own = step_costs(nn.Sequential(split.client, split.head), sample_shape)
    server = step_costs(split.server, activation, input_gradient=settings.returns_gradients)
    return SplitStepCosts(own, again, server)
