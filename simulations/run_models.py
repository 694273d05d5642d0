"""The model of a run, from its settings: whole, or cut for AdaSplit."""

from __future__ import annotations

from torch import nn

from adasplit_flwr.split import SplitModel, split_sequential
from simulations.cut_points import cut_children
from simulations.data import load_data
from simulations.models import build_model
from simulations.settings import RunSettings
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import array_names


def plain_model(settings: RunSettings) -> nn.Module:
    """Build a run's model; its weights depend on the run's seed alone."""
    data = load_data(settings.data)
    return build_model(
        settings.simulation.model, data.num_classes, data.sample_shape, seed=settings.seed
    )


def sequential_model(settings: RunSettings) -> nn.Sequential:
    """Build a run's model, which is to be cut.

    Raises
    ------
    SettingsError
        If it is no ``nn.Sequential``.
    """
    model, spec = plain_model(settings), settings.simulation.model
    if not isinstance(model, nn.Sequential):
        raise SettingsError(
            f"model {spec!r} is a {type(model).__name__}: only an nn.Sequential can be cut by a "
            "number or a name; AdaSplit's own classes take any SplitModel(client, head, server)"
        )
    return model


def split_model(settings: RunSettings) -> SplitModel:
    """Build a run's model and cut it as the settings say; the weights depend on the seed alone.

    Raises
    ------
    SettingsError
        If it is no ``nn.Sequential``, or cannot be cut there.
    """
    return split_sequential(
        sequential_model(settings),
        cut_children(settings.simulation.model, settings.split.cut),
        projection_dim=settings.split.projection_dim,
        sample_shape=load_data(settings.data).sample_shape,
        seed=settings.seed,
    )


def model_array_names(settings: RunSettings) -> list[str]:
    """Return the names of the arrays that a run's model consists of, in their order."""
    build = split_model if settings.algorithm == "adasplit" else plain_model
    return array_names(build(settings))
