"""The projection head: from a batch of activations to the embeddings of the client's loss."""

from __future__ import annotations

import torch
from torch import nn

from zerofl_flwr.errors import SettingsError

IMAGE_WIDTH = 128
"""Channels between the two layers of a head for images."""

FLAT_WIDTH = 256
"""Features between the two layers of a head for flat activations."""


class ProjectionHead(nn.Module):
    """Projects the client part's activations, and is trained with it.

    A part of AdaSplit, arXiv 2112.01637. It is no part of the network that is used in the end, and
    travels with the client part alone: as the common start, and where weights are averaged or
    relayed. Activations of shape (n, C, H, W) go through a 1x1
    convolution to 128 channels, leaky ReLU, the maximum over all positions, and a linear layer;
    flat ones of shape (n, F) through a linear layer to 256 features, leaky ReLU, and a linear
    layer. The height and width of images are free.

    Parameters
    ----------
    width : int
        Channels C of images, or features F of flat activations.
    projection_dim : int
        Length of the embeddings.
    flat : bool
        Whether the activations are flat.

    Raises
    ------
    SettingsError
        If a width is no whole number from 1.

    Examples
    --------
    >>> head = ProjectionHead(20, flat=False)
    >>> head(torch.zeros(2, 20, 16, 16)).shape
    torch.Size([2, 64])
    """

    def __init__(self, width: int, projection_dim: int = 64, *, flat: bool) -> None:
        super().__init__()
        for name, value in (("width", width), ("projection_dim", projection_dim)):
            if type(value) is not int or value < 1:
                raise SettingsError(
                    f"{name} of a projection head is {value!r}; it must be a whole number from 1"
                )
        self.flat = flat
        self.hidden: nn.Module = (
            nn.Linear(width, FLAT_WIDTH) if flat else nn.Conv2d(width, IMAGE_WIDTH, 1)
        )
        self.activation = nn.LeakyReLU()
        self.projection = nn.Linear(FLAT_WIDTH if flat else IMAGE_WIDTH, projection_dim)

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        """Project activations.

        Parameters
        ----------
        activations : Tensor
            Float, (n, C, H, W), or (n, F) for a flat head.

        Returns
        -------
        Tensor
            (n, projection_dim), not normalised.

        Raises
        ------
        SettingsError
            If the activations have another number of dimensions.
        """
        if activations.dim() != (2 if self.flat else 4):
            raise SettingsError(
                f"this projection head takes activations of shape "
                f"{'(n, F)' if self.flat else '(n, C, H, W)'}, "
                f"they have shape {tuple(activations.shape)}"
            )
        inner: torch.Tensor = self.activation(self.hidden(activations))
        if not self.flat:
            # Not max pooling: its gradient on CUDA adds in any order, and ties are frequent here.
            inner = inner.amax(dim=(2, 3))
        projected: torch.Tensor = self.projection(inner)
        return projected
