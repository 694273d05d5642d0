"""What a projection head takes: read from the layers before the cut, or seen in a trial."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from adasplit_flwr.dry_run import try_client
from zerofl_flwr.errors import SettingsError

_KEEPS_WIDTH = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU),
    *(nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus),
    *(nn.BatchNorm1d, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm),
    *(nn.Dropout, nn.Dropout2d, nn.AlphaDropout),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)
_OWN_HEAD = "bring a head of your own with SplitModel(client, head, server)"


def is_plain_sequence(module: nn.Module) -> bool:
    """Say whether a module does nothing but run its children one after the other."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def head_input(
    client: nn.Sequential, sample_shape: tuple[int, ...] | None = None
) -> tuple[int, bool]:
    """Find out how wide a client part's activations are, and whether they are flat.

    Parameters
    ----------
    client : nn.Sequential
        Maps samples to activations (n, C, H, W) or (n, F).
    sample_shape : tuple of int, optional
        Shape of a sample, without the batch: then a copy of the client part is tried on zeros.
        Without it, the last layer that tells its ``out_channels``, ``out_features`` or
        ``num_features`` decides. Only layers that are known to keep the width may follow it, and
        a module with a forward of its own speaks for itself, not through its children.

    Returns
    -------
    width : int
        C or F.
    flat : bool
        Whether the activations are (n, F).

    Raises
    ------
    SettingsError
        If no layer tells the width and no ``sample_shape`` is given, the trial fails, or the
        activations have another number of dimensions.
    """
    if sample_shape is None:
        told = _told(client)
        if told is None:
            raise SettingsError(
                "the layers before the cut do not tell what shape the projection head takes; give "
                f"sample_shape, the shape of one sample, or {_OWN_HEAD}"
            )
        return told
    shape = tuple(try_client(client, sample_shape).shape)
    if len(shape) not in (2, 4):
        raise SettingsError(
            "a projection head takes activations of shape (n, C, H, W) or (n, F), the client part "
            f"gives {shape}; cut elsewhere, or {_OWN_HEAD}"
        )
    return shape[1], len(shape) == 2


def _told(client: nn.Sequential) -> tuple[int, bool] | None:
    for layer in reversed(list(_layers(client))):
        if isinstance(layer, nn.BatchNorm2d | nn.InstanceNorm2d):
            return _if_positive(layer.num_features, flat=False)
        if isinstance(layer, nn.modules.conv._ConvNd) and len(layer.kernel_size) != 2:
            return None
        if not isinstance(layer, _KEEPS_WIDTH):
            channels = _if_positive(getattr(layer, "out_channels", None), flat=False)
            return channels or _if_positive(getattr(layer, "out_features", None), flat=True)
    return None


def _layers(sequence: nn.Sequential) -> Iterator[nn.Module]:
    for child in sequence:
        if isinstance(child, nn.Sequential) and is_plain_sequence(child):
            yield from _layers(child)
        else:
            yield child


def _if_positive(width: object, *, flat: bool) -> tuple[int, bool] | None:
    return (width, flat) if isinstance(width, int) and width > 0 else None
