"""Cut a network in three: the client's part, its projection head, and the server's part."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from adasplit_flwr.dry_run import first_float_parameter, try_client, try_part
from adasplit_flwr.head import ProjectionHead
from adasplit_flwr.head_input import head_input, is_plain_sequence
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.training import seed_of

_HEAD_STREAM = 1
"""Keeps the head's weights apart from a network that was drawn from the same seed."""


class SplitModel(nn.Module):
    """A network cut in two, with the head that the client part trains with (AdaSplit).

    The three parts of AdaSplit, arXiv 2112.01637: the client part makes activations, the head
    projects them for the client's loss, and the server part classifies them.

    Parameters
    ----------
    client : nn.Module
        Maps samples (n, ...) to activations (n, ...).
    head : nn.Module
        Maps activations to embeddings (n, d), e.g. a `ProjectionHead`.
    server : nn.Module
        Maps activations to logits (n, classes).

    Raises
    ------
    SettingsError
        If a part is no ``nn.Module`` or has lazy layers that never ran, or two parts share a
        parameter, which no two machines can.
    """

    def __init__(self, client: nn.Module, head: nn.Module, server: nn.Module) -> None:
        super().__init__()
        parts = {"client": client, "head": head, "server": server}
        for name, part in parts.items():
            if not isinstance(part, nn.Module):
                raise SettingsError(
                    f"{name} of a SplitModel must be an nn.Module, it is a {type(part).__name__}"
                )
            _refuse_lazy(name, part)
        _refuse_shared(parts)
        self.client = client
        self.head = head
        self.server = server

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map samples (n, ...) to logits (n, classes): the whole network, the head left out."""
        logits: torch.Tensor = self.server(self.client(x))
        return logits


@dataclass(frozen=True)
class SplitShapes:
    """What a split passes on: the shape of one sample's activation, and two output widths."""

    activation: tuple[int, ...]
    projection_dim: int
    num_outputs: int


def split_sequential(
    net: nn.Sequential,
    cut: int | str,
    *,
    projection_dim: int = 64,
    sample_shape: tuple[int, ...] | None = None,
    seed: int = 0,
) -> SplitModel:
    """Cut a sequential network after one of its children and give it a projection head.

    The first step of AdaSplit, arXiv 2112.01637. The parts hold the modules of ``net`` itself,
    under the same names.

    Parameters
    ----------
    net : nn.Sequential
        At least two children.
    cut : int or str
        How many children stay with the client, from 1 to all but one; or the name of the last
        child that stays.
    projection_dim : int
        Length of the head's embeddings.
    sample_shape : tuple of int, optional
        Shape of a sample, without the batch. A copy of the client part is then tried on zeros to
        see what the head takes. Without it, the last layer of the client part that tells its
        ``out_channels``, ``out_features`` or ``num_features`` decides, if only layers that keep
        the width follow it.
    seed : int
        Seed of the head's initial weights. The global random state stays as it was.

    Returns
    -------
    SplitModel
        Its head has the device and the dtype of the client part.

    Raises
    ------
    SettingsError
        If the network is not sequential, the cut is not inside it, the head's width cannot be
        known or made, or as for `SplitModel`.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> split = split_sequential(net, cut=2)
    >>> check_split(split, sample_shape=(8,))
    SplitShapes(activation=(16,), projection_dim=64, num_outputs=3)
    """
    if not is_plain_sequence(net):
        raise SettingsError(
            f"only an nn.Sequential without a forward of its own can be cut by position, not a "
            f"{type(net).__name__}; cut it yourself with SplitModel(client, head, server)"
        )
    if type(seed) is not int:
        raise SettingsError(f"seed is {seed!r}; it must be a whole number")
    # Not named_children(), which leaves out a module that comes a second time.
    children = list(zip(net._modules, net, strict=True))
    count = _children_on_the_client(cut, list(net._modules))
    client, server = _sequential(children[:count]), _sequential(children[count:])
    width, flat = head_input(client, sample_shape)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also seed the accelerators, which are not forked.
        torch.default_generator.manual_seed(seed_of(seed, _HEAD_STREAM))
        head = ProjectionHead(width, projection_dim, flat=flat)
    split = SplitModel(client, head, server)
    example = first_float_parameter(client)
    if example is not None:
        head.to(example)
    # Not train(), which would also set the children, and each of them may have its own mode.
    for module in (split, client, head, server):
        module.training = net.training
    return split


def check_split(split: SplitModel, sample_shape: tuple[int, ...]) -> SplitShapes:
    """Try a split on two samples of zeros and return the shapes that it passes on.

    Copies of the parts run, in evaluation mode and on the CPU, so the split and the global random
    state stay as they were.

    Parameters
    ----------
    split : SplitModel
        To be tried.
    sample_shape : tuple of int
        Shape of a sample, without the batch.

    Returns
    -------
    SplitShapes
        Of one sample.

    Raises
    ------
    SettingsError
        If a part fails, which one, on which shape, and why; or if it returns anything but floats
        with the batch dimension first, or the head or the server part no matrix.
    """
    if not isinstance(split, SplitModel):
        raise SettingsError(f"only a SplitModel can be checked, not a {type(split).__name__}")
    activations = try_client(split.client, sample_shape)
    embeddings = try_part(split.head, "head", activations)
    outputs = try_part(split.server, "server", activations)
    for name, matrix in (("head", embeddings), ("server", outputs)):
        if matrix.dim() != 2:
            raise SettingsError(
                f"the {name} of the split must return one row for each sample, shape (2, ...), "
                f"it returned {tuple(matrix.shape)} for activations of shape "
                f"{tuple(activations.shape)}"
            )
    return SplitShapes(tuple(activations.shape[1:]), embeddings.shape[1], outputs.shape[1])


def _refuse_lazy(part_name: str, part: nn.Module) -> None:
    for name, tensor in (*part.named_parameters(), *part.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise SettingsError(
                f"{part_name}.{name} has no shape yet; run the network once on a batch before it "
                "is split"
            )


def _refuse_shared(parts: dict[str, nn.Module]) -> None:
    owners: dict[int, tuple[str, str]] = {}
    for part_name, part in parts.items():
        for name, parameter in part.named_parameters(remove_duplicate=False):
            owner, owned = owners.setdefault(id(parameter), (part_name, name))
            if owner != part_name:
                raise SettingsError(
                    f"{owner}.{owned} and {part_name}.{name} are one and the same parameter; the "
                    "parts train apart, so they cannot share weights: cut elsewhere or untie them"
                )


def _children_on_the_client(cut: int | str, names: list[str]) -> int:
    if isinstance(cut, bool) or not isinstance(cut, int | str):
        raise SettingsError(
            f"cut is {cut!r}; it must be a number of children or the name of a child"
        )
    if len(names) < 2:
        raise SettingsError(f"a network of {len(names)} children cannot be cut; it needs two")
    if isinstance(cut, int):
        if not 1 <= cut < len(names):
            raise SettingsError(
                f"cut is {cut}; it must be from 1 to {len(names) - 1}, "
                f"for the network has {len(names)} children"
            )
        return cut
    if cut == names[-1]:
        raise SettingsError(
            f"cut is {cut!r}, the last child, which leaves nothing to the server; the last cut is "
            f"{names[-2]!r}"
        )
    if cut not in names:
        raise SettingsError(unknown_name("child to cut after", cut, names[:-1]))
    return names.index(cut) + 1


def _sequential(children: list[tuple[str, nn.Module]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(children))
