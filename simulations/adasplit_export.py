"""A client's own network out of a run of AdaSplit (arXiv 2112.01637)."""

from __future__ import annotations

from pathlib import Path

from flwr.app import RecordDict

from adasplit_flwr.client_resume import resume
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.plans import FRESH, TestPlan
from adasplit_flwr.weights_payload import CLIENT, HEAD, SERVER, encode_weights, named_arrays
from simulations.adasplit_parts import make_client, make_strategy
from simulations.exported import (
    CHECKPOINT,
    MODEL,
    Exported,
    by_name,
    checkpoint_of,
    difference,
    load_saved,
    on_cpu,
    unfinished,
)
from simulations.run_models import plain_model, split_model
from simulations.run_name import read_run_name
from simulations.settings import RunSettings
from strategies import AdaSplit
from zerofl_flwr.model_arrays import Array, array_names
from zerofl_flwr.threads import limit_threads


def personal_network(settings: RunSettings, run: Path, client: int) -> Exported:
    """Read a client's part, and the server part as the client's mask lets it through.

    Without a checkpoint, the network that all clients share, if they share both parts.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    run : Path
        Its folder.
    client : int
        A partition id.

    Raises
    ------
    DataError, SettingsError, ClientFailedError, PayloadError
        As :func:`simulations.export.export_network`.
    """
    is_shared = settings.adasplit.shares_weights and settings.adasplit.mask == "none"
    if is_shared and not (run / CHECKPOINT).exists() and (run / MODEL).exists():
        return _shared_network(settings, run)
    checkpoint, name = checkpoint_of(run, settings), read_run_name(run)
    strategy = make_strategy(settings, run, name)
    strategy.load_state_arrays(checkpoint.state)
    parts = _client_part(settings, run, strategy, client, checkpoint.server_round, name)
    limit_threads(settings.split.server_threads)  # as in the run: the number may change bits
    for key, tensor in strategy.server.submodel(client).items():
        parts[f"{SERVER}.{key}"] = tensor.numpy()
    arrays, notes = _unsplit(parts, array_names(plain_model(settings)))
    return Exported(
        arrays,
        checkpoint.server_round,
        (
            *unfinished(settings, checkpoint.server_round),
            *_untrained(settings, strategy, client),
            *notes,
        ),
    )


def _shared_network(settings: RunSettings, run: Path) -> Exported:
    """Read the network that all clients of AdaSplit share at the end of a run."""
    split = split_model(settings)
    load_saved(split, run / MODEL)
    parts = {name: a for name, a in by_name(split).items() if not name.startswith(f"{HEAD}.")}
    arrays, notes = _unsplit(parts, array_names(plain_model(settings)))
    return Exported(arrays, settings.simulation.rounds, tuple(notes))


def _client_part(
    settings: RunSettings,
    run: Path,
    strategy: AdaSplit,
    client: int,
    server_round: int,
    run_name: str,
) -> dict[str, Array]:
    """Bring a client to where its next test would find it, and return its part, by name."""
    member = make_client(on_cpu(settings), client, RecordDict(), run)
    state_round = strategy.clients.state_round(client)
    if settings.adasplit.client_weights != "personal":
        state_round = FRESH  # what all share replaces the weights of a state
    weights: list[Array] = []
    if state_round == FRESH:
        weights = encode_weights(strategy.weights.arrays, server_round=server_round)
    plan = TestPlan(run_name, server_round, state_round, True, len(weights), 0)
    split = member.split
    resume(
        LocalTrainer(split.client, split.head, seed=settings.seed, partition_id=client),
        plan,
        weights,
        lambda: member.kept.find(plan),
    )
    return named_arrays({CLIENT: split.client})


def _unsplit(parts: dict[str, Array], names: list[str]) -> tuple[dict[str, Array], list[str]]:
    """Name the arrays of both parts as the model does that was cut; also say where that fails."""
    whole = {name.partition(".")[2]: array for name, array in parts.items()}
    if len(whole) == len(parts) and whole.keys() == set(names):
        return {name: whole[name] for name in names}, []
    note = (
        f"its keys are those of the parts, {CLIENT}.* and {SERVER}.*, for the model has other "
        f"arrays than its children: {difference(whole, names)}"
    )
    return parts, [note]


def _untrained(settings: RunSettings, strategy: AdaSplit, client: int) -> list[str]:
    notes = []
    if strategy.clients.state_round(client) == FRESH:  # it never trained, or lost its state
        if settings.adasplit.client_weights == "personal":
            notes.append(f"client {client} has no trained part: its part is the common start")
        else:
            notes.append(f"client {client} has not trained: its part is the one that others share")
    if not strategy.server.has_learned_from(client):
        if settings.adasplit.mask == "none":
            notes.append("the server has learned from nobody: its part is untrained")
        else:
            notes.append(
                f"the server has never learned from client {client}: its mask is the random one "
                "that it starts with, on which nothing was trained"
            )
    return notes
