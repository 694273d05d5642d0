"""What a sample costs AdaSplit's parts: multiply-adds forward, and bytes across the cut."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from adasplit_flwr.dry_run import try_client
from adasplit_flwr.split import SplitModel


@dataclass(frozen=True)
class SampleCosts:
    """Costs of one sample.

    Parameters
    ----------
    client, head, server : int
        Multiply-adds of a forward pass through each part. As in the figures of AdaSplit
        (arXiv 2112.01637), matrix products and convolutions count, and nothing else.
    activation_bytes : int
        Bytes of its activation, dense in float32.
    """

    client: int
    head: int
    server: int
    activation_bytes: int

    @property
    def client_step(self) -> int:
        """Multiply-adds that a client takes forward when it trains on a sample: part and head."""
        return self.client + self.head


def sample_costs(split: SplitModel, sample_shape: tuple[int, ...]) -> SampleCosts:
    """Count what one sample costs.

    Parameters
    ----------
    split : SplitModel
        The cut network; copies of its parts are tried.
    sample_shape : tuple of int
        Shape of a sample, without the batch.

    Raises
    ------
    SettingsError
        If the shape is none, or the client part fails on it.

    Examples
    --------
    >>> from adasplit_flwr import split_sequential
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> sample_costs(split_sequential(net, cut=2), (8,))
    SampleCosts(client=128, head=20480, server=48, activation_bytes=64)
    """
    activation = try_client(split.client, sample_shape)[:1]
    inputs = torch.zeros(1, *sample_shape, dtype=activation.dtype)
    return SampleCosts(
        client=multiply_adds(split.client, inputs),
        head=multiply_adds(split.head, activation),
        server=multiply_adds(split.server, activation),
        activation_bytes=4 * math.prod(activation.shape),
    )


def multiply_adds(part: nn.Module, inputs: torch.Tensor) -> int:
    """Count the multiply-adds of a forward pass: half of what torch calls its FLOPs.

    Parameters
    ----------
    part : nn.Module
        A copy of it runs, in evaluation mode and on the CPU.
    inputs : Tensor
        A batch, on the CPU.
    """
    tried = copy.deepcopy(part).cpu().eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        tried(inputs)
    return int(counter.get_total_flops()) // 2
