"""A run's trained network as a state_dict of the plain model, to be used without this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import RecordDict
from torch import nn

from adasplit_flwr.client_resume import find_state, resume
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.plans import FRESH, TestPlan
from adasplit_flwr.weights_payload import CLIENT, HEAD, SERVER, encode_weights, named_arrays
from simulations import adasplit_parts, baseline_parts
from simulations.baselines import AloneClient
from simulations.checkpoint import Checkpoint
from simulations.network_file import check_suffix, save_network
from simulations.run_models import plain_model, split_model
from simulations.run_name import read_run_name
from simulations.settings import RunSettings, read_config
from strategies import AdaSplit
from strategies.client_rounds import ClientRounds
from strategies.state import unprefixed
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, set_arrays
from zerofl_flwr.npz import load_npz
from zerofl_flwr.threads import limit_threads, threads_restored

_CONFIG, _CHECKPOINT, _MODEL = "config.toml", "checkpoint.npz", "model.npz"


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


def export(run: Path, client: int | None, out: Path) -> Exported:
    """Write a run's trained network to a file; see :func:`export_network`, :func:`save_network`.

    Raises
    ------
    SettingsError
        If the file's name ends otherwise, or it is one that the run's folder has already.
    LeanFlwrError
        As the two functions.
    """
    check_suffix(out)
    if out.exists() and out.resolve().is_relative_to(run.resolve()):
        raise SettingsError(
            f"{out} is in the run's folder already, whose files stay as they are: choose another "
            "name"
        )
    exported = export_network(run, client)
    save_network(out, exported.arrays)
    return exported


def export_network(run: Path, client: int | None = None) -> Exported:
    """Read a trained network out of a run's folder; nothing there is written.

    Of ZeroFL (arXiv 2208.02507) and the baselines that average it is the global model. Of AdaSplit
    (arXiv 2112.01637) it is a client's own network, as it was in the last test: the client's part,
    without its head, and the server part with its weights as the client's mask lets them through.
    Of clients that train alone it is a client's own as well.

    Parameters
    ----------
    run : Path
        Folder of a run that has finished, or has a checkpoint: then the network is that one's. A
        client's own needs the checkpoint, but where all share both parts without a mask. A run that
        goes on meanwhile is not disturbed, but may take away what is to be read.
    client : int, optional
        Partition id; needed where clients have networks of their own, and refused elsewhere.

    Returns
    -------
    Exported
        Also for a client that has never trained or was never picked; the notes say so.

    Raises
    ------
    DataError
        If the folder holds no run, or nothing trained yet; or a file of it is damaged.
    SettingsError
        If there is no such client, it is missing or one too many, or the run's model has changed.
    ClientFailedError
        If the file with the client's part is not there.
    PayloadError
        If the arrays are those of another model.
    """
    run = run.absolute()
    if not (run / _CONFIG).exists():
        raise DataError(f"{run} holds no run: it has no {_CONFIG}")
    settings = RunSettings.from_mapping(read_config(run / _CONFIG))
    if settings.algorithm == "adasplit":
        with threads_restored():
            return _personal_network(settings, run, _checked(client, settings))
    if settings.algorithm == "baseline" and settings.simulation.strategy == "alone":
        with threads_restored():
            return _network_of_alone(settings, run, _checked(client, settings))
    if client is not None:
        raise SettingsError(
            f"client {client} of {run} was asked for, but its method is {settings.algorithm}, "
            "where all clients share one network: leave --client out"
        )
    return _global_network(settings, run)


def _checked(client: int | None, settings: RunSettings) -> int:
    last = settings.data.num_clients - 1
    if client is None:
        method = "AdaSplit" if settings.algorithm == "adasplit" else "strategy alone"
        raise SettingsError(
            f"with {method} each client has a network of its own: say whose with --client, 0 to "
            f"{last}"
        )
    if not 0 <= client <= last:
        raise SettingsError(f"there is no client {client}: those of this run are 0 to {last}")
    return client


def _global_network(settings: RunSettings, run: Path) -> Exported:
    model, server_round = plain_model(settings), settings.simulation.rounds
    if (run / _MODEL).exists():
        _load_saved(model, run / _MODEL)
    elif (path := run / _CHECKPOINT).exists():
        checkpoint = Checkpoint.load(path)
        set_arrays(model, checkpoint.arrays, sender=str(path))
        server_round = checkpoint.server_round
    else:
        raise DataError(f"{run} holds no network yet: it has neither {_MODEL} nor {_CHECKPOINT}")
    notes = _unfinished(settings, server_round)
    zerofl = settings.algorithm == "zerofl"
    if zerofl and (sparsity := settings.zerofl.plan(server_round).sparsity):
        arguments = f"model, {sparsity}"
        if settings.simulation.masked is not None:
            layers = [name.strip() for name in settings.simulation.masked.split(",")]
            arguments += f", masked={layers}"
        notes.append(
            f"the network was trained at sparsity {sparsity} and must be tested so: give the model "
            f"to zerofl_flwr.sparsify({arguments}) first, which keeps its keys"
        )
    return Exported(_named(model), server_round, tuple(notes))


def _load_saved(model: nn.Module, path: Path) -> None:
    """Load ``model.npz`` into a model, whose arrays it must hold."""
    named, names = load_npz(path, what="model"), array_names(model)
    if list(named) != names:
        raise DataError(f"{path} holds the arrays of another model: {_difference(named, names)}")
    set_arrays(model, list(named.values()), sender=str(path))


def _named(model: nn.Module) -> dict[str, Array]:
    return dict(zip(array_names(model), get_arrays(model), strict=True))


def _shared_network(settings: RunSettings, run: Path) -> Exported:
    """Read the network that all clients of AdaSplit share at the end of a run."""
    split = split_model(settings)
    _load_saved(split, run / _MODEL)
    parts = {name: a for name, a in _named(split).items() if not name.startswith(f"{HEAD}.")}
    arrays, notes = _unsplit(parts, array_names(plain_model(settings)))
    return Exported(arrays, settings.simulation.rounds, tuple(notes))


def _personal_network(settings: RunSettings, run: Path, client: int) -> Exported:
    is_shared = settings.adasplit.shares_weights and settings.adasplit.mask == "none"
    if is_shared and not (run / _CHECKPOINT).exists() and (run / _MODEL).exists():
        return _shared_network(settings, run)
    checkpoint, name = _checkpoint_of(run, settings), read_run_name(run)
    strategy = adasplit_parts.make_strategy(settings, run, name)
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
            *_unfinished(settings, checkpoint.server_round),
            *_untrained(settings, strategy, client),
            *notes,
        ),
    )


def _network_of_alone(settings: RunSettings, run: Path, client: int) -> Exported:
    checkpoint, name = _checkpoint_of(run, settings), read_run_name(run)
    rounds = ClientRounds(name)
    rounds.load_state_arrays(unprefixed("wrapped", checkpoint.state))
    plan = rounds.plan(client, checkpoint.server_round)
    member = baseline_parts.make_client(_on_cpu(settings), client, RecordDict(), run)
    notes = _unfinished(settings, checkpoint.server_round)
    if plan.state_round == FRESH:
        set_arrays(member.model, checkpoint.arrays)
        notes.append(f"client {client} has not trained: its network is the common start")
    elif isinstance(member, AloneClient):
        member.resume(plan, [])
    return Exported(_named(member.model), checkpoint.server_round, tuple(notes))


def _checkpoint_of(run: Path, settings: RunSettings) -> Checkpoint:
    path, every = run / _CHECKPOINT, settings.simulation.checkpoint_every
    if path.exists():
        return Checkpoint.load(path)
    why = f"the run comes to its first after round {min(every, settings.simulation.rounds)}"
    if not every:
        why = "the run keeps none (checkpoint-every 0): run it again with checkpoint-every 1"
    raise DataError(f"{run} has no {_CHECKPOINT}, which a client's network is made from: {why}")


def _on_cpu(settings: RunSettings) -> RunSettings:
    return replace(settings, simulation=replace(settings.simulation, device="cpu"))


def _client_part(
    settings: RunSettings,
    run: Path,
    strategy: AdaSplit,
    client: int,
    server_round: int,
    run_name: str,
) -> dict[str, Array]:
    """Bring a client to where its next test would find it, and return its part, by name."""
    member = adasplit_parts.make_client(_on_cpu(settings), client, RecordDict(), run)
    state_round = strategy.clients.state_round(client)
    if settings.adasplit.client_weights != "personal":
        state_round = FRESH  # what all share replaces the weights of a state
    weights: list[Array] = []
    if state_round == FRESH:
        weights = encode_weights(strategy.weights.arrays, server_round=server_round)
    split = member.split
    resume(
        LocalTrainer(split.client, split.head, seed=settings.seed, partition_id=client),
        TestPlan(run_name, server_round, state_round, True, len(weights), 0),
        weights,
        lambda: find_state(
            [],
            member.state_dir,
            run=run_name,
            partition_id=client,
            server_round=state_round,
        ),
    )
    return named_arrays({CLIENT: split.client})


def _unsplit(parts: dict[str, Array], names: list[str]) -> tuple[dict[str, Array], list[str]]:
    """Name the arrays of both parts as the model does that was cut; also say where that fails."""
    whole = {name.partition(".")[2]: array for name, array in parts.items()}
    if len(whole) == len(parts) and whole.keys() == set(names):
        return {name: whole[name] for name in names}, []
    note = (
        f"its keys are those of the parts, {CLIENT}.* and {SERVER}.*, for the model has other "
        f"arrays than its children: {_difference(whole, names)}"
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


def _unfinished(settings: RunSettings, server_round: int) -> list[str]:
    rounds = settings.simulation.rounds
    if server_round == rounds:
        return []
    return [f"the run has not ended: this is the network after round {server_round} of {rounds}"]


def _difference(found: Mapping[str, Array], expected: list[str]) -> str:
    differing = sorted(found.keys() ^ set(expected))
    return ", ".join(differing) if differing else "they come in another order"
