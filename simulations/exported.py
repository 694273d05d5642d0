"""What is read of a run's folder to take a trained network out of it, whatever the method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from simulations.checkpoint import Checkpoint
from simulations.settings import RunSettings
from zerofl_flwr.errors import DataError
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, set_arrays
from zerofl_flwr.npz import load_npz

CHECKPOINT, MODEL = "checkpoint.npz", "model.npz"


@dataclass(frozen=True, eq=False)
class Exported:
    """A trained network.

    Parameters
    ----------
    arrays : dict of str to ndarray
        By the keys of the plain model's state_dict, in its order. Of a model that has arrays beside
        its children's, by ``client.<key>`` and ``server.<key>``.
    server_round : int
        Round after which this is the network.
    notes : tuple of str
        What somebody who uses it should know, a sentence each.
    """

    arrays: dict[str, Array]
    server_round: int
    notes: tuple[str, ...]


def load_saved(model: nn.Module, path: Path) -> None:
    """Load ``model.npz`` into a model, whose arrays it must hold.

    Raises
    ------
    DataError
        If the file is damaged, or holds the arrays of another model.
    PayloadError
        If an array has another shape or dtype.
    """
    saved, names = load_npz(path, what="model"), array_names(model)
    if list(saved) != names:
        raise DataError(f"{path} holds the arrays of another model: {difference(saved, names)}")
    set_arrays(model, list(saved.values()), sender=str(path))


def by_name(model: nn.Module) -> dict[str, Array]:
    """Return a model's arrays by the keys of its state_dict."""
    return dict(zip(array_names(model), get_arrays(model), strict=True))


def checkpoint_of(run: Path, settings: RunSettings) -> Checkpoint:
    """Read a run's checkpoint.

    Raises
    ------
    DataError
        If there is none, with what to do about it; or it is damaged.
    """
    path, every = run / CHECKPOINT, settings.simulation.checkpoint_every
    if path.exists():
        return Checkpoint.load(path)
    why = f"the run comes to its first after round {min(every, settings.simulation.rounds)}"
    if not every:
        why = "the run keeps none (checkpoint-every 0): run it again with checkpoint-every 1"
    raise DataError(f"{run} has no {CHECKPOINT}, which a client's network is made from: {why}")


def on_cpu(settings: RunSettings) -> RunSettings:
    """Let a run's clients be built where there may be no other device."""
    return replace(settings, simulation=replace(settings.simulation, device="cpu"))


def unfinished(settings: RunSettings, server_round: int) -> list[str]:
    """Note that a network is not that of the run's end; nothing if it is."""
    rounds = settings.simulation.rounds
    if server_round == rounds:
        return []
    return [f"the run has not ended: this is the network after round {server_round} of {rounds}"]


def difference(found: Mapping[str, Array], expected: list[str]) -> str:
    """Name the arrays that are missing or too many."""
    differing = sorted(found.keys() ^ set(expected))
    return ", ".join(differing) if differing else "they come in another order"
