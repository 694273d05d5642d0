"""What a sample costs AdaSplit's parts: multiply-adds forward, and bytes across the cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adasplit_flwr.dry_run import try_client
from adasplit_flwr.split import SplitModel
from zerofl_flwr.costs import step_costs


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
        If the shape is none, or a part fails on it.

    Examples
    --------
    >>> from torch import nn
    >>> from adasplit_flwr import split_sequential
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> sample_costs(split_sequential(net, cut=2), (8,))
    SampleCosts(client=128, head=20480, server=48, activation_bytes=64)
    """
    activation = tuple(try_client(split.client, sample_shape).shape[1:])
    return SampleCosts(
        client=step_costs(split.client, sample_shape).forward,
        head=step_costs(split.head, activation).forward,
        server=step_costs(split.server, activation).forward,
        activation_bytes=4 * math.prod(activation),
    )
