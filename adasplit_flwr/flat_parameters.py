"""The trainable parameters of a module seen as one vector, in pieces that fit a CPU's cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from zerofl_flwr.errors import SettingsError

PIECE = 131_072
"""Elements that several elementwise steps go over before the next ones are fetched from memory."""

_DTYPES = (torch.float32, torch.float64)


class FlatParameters:
    """Names, shapes and flat positions of a module's trainable parameters.

    The vector holds them in the order of ``named_parameters()``, each in C order; a parameter that
    two layers share is in it once. A piece is a run of at most :data:`PIECE` elements of it that
    lies within one parameter.

    Parameters
    ----------
    module : nn.Module
        On the CPU. Parameters that do not require a gradient are left out.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        The parameters' names and shapes, in the vector's order.
    tensors : list of Tensor
        The parameters themselves, sharing memory with the module's, without a graph.
    length : int
        Elements of the vector, P.
    dtype : torch.dtype
        float32 or float64.
    weight_pieces : list of Tensor
        The parameters' own memory, piece by piece; copies of those that are not contiguous.

    Raises
    ------
    SettingsError
        If nothing is trainable, or a parameter is not on the CPU, not float32 or float64, or not of
        the others' dtype.
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self.dtype = _common_dtype(trainable)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in trainable.items()}
        self.tensors = [parameter.detach() for parameter in trainable.values()]
        self.length = sum(tensor.numel() for tensor in self.tensors)
        self.weight_pieces = self.pieces_of(self.tensors)
        self._piece_sizes = [piece.numel() for piece in self.weight_pieces]

    @staticmethod
    def pieces_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Cut tensors that are shaped like the parameters; views of them where they are contiguous.

        Parameters
        ----------
        tensors : iterable of Tensor
            One a parameter, in order.

        Returns
        -------
        list of Tensor
            1-D, as many and as long as :attr:`weight_pieces`.
        """
        return [piece for tensor in tensors for piece in torch.split(tensor.reshape(-1), PIECE)]

    def pieces(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Cut a vector of shape (P,) into views, as many and as long as :attr:`weight_pieces`."""
        return list(torch.split_with_sizes(vector, self._piece_sizes))

    def shaped(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of a vector of shape (P,): one a parameter, by name, in its shape."""
        sizes = [tensor.numel() for tensor in self.tensors]
        return {
            name: part.view(shape)
            for (name, shape), part in zip(
                self.shapes.items(), torch.split_with_sizes(vector, sizes), strict=True
            )
        }


def _common_dtype(trainable: Mapping[str, nn.Parameter]) -> torch.dtype:
    dtype: torch.dtype | None = None
    for name, parameter in trainable.items():
        if parameter.device.type != "cpu":
            raise SettingsError(
                f"the server part trains on the CPU, and its parameter {name} is on "
                f"{parameter.device}; move the module to the CPU first"
            )
        if parameter.dtype not in _DTYPES:
            raise SettingsError(
                f"parameter {name} of the server part is {parameter.dtype}; "
                "it must be float32 or float64"
            )
        dtype = dtype or parameter.dtype
        if parameter.dtype is not dtype:
            raise SettingsError(
                f"parameter {name} of the server part is {parameter.dtype}, others are {dtype}; "
                "all must have one dtype"
            )
    if dtype is None:
        raise SettingsError("the server part has no trainable parameters, so nothing could learn")
    return dtype
