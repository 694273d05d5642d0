"""A run's trained network as a state_dict of the plain model, to be used without this package."""

from __future__ import annotations

from pathlib import Path

from flwr.app import RecordDict

from adasplit_flwr.plans import FRESH
from simulations.adasplit_export import personal_network
from simulations.baseline_parts import make_client
from simulations.baselines import AloneClient
from simulations.checkpoint import Checkpoint
from simulations.exported import (
    CHECKPOINT,
    MODEL,
    Exported,
    by_name,
    checkpoint_of,
    load_saved,
    on_cpu,
    unfinished,
)
from simulations.network_file import check_suffix, save_network
from simulations.run_models import plain_model
from simulations.run_name import read_run_name
from simulations.settings import RunSettings, read_config
from strategies.client_rounds import ClientRounds
from strategies.state import unprefixed
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.model_arrays import set_arrays
from zerofl_flwr.threads import threads_restored

_CONFIG = "config.toml"


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
            return personal_network(settings, run, _checked(client, settings))
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
    if (run / MODEL).exists():
        load_saved(model, run / MODEL)
    elif (path := run / CHECKPOINT).exists():
        checkpoint = Checkpoint.load(path)
        set_arrays(model, checkpoint.arrays, sender=str(path))
        server_round = checkpoint.server_round
    else:
        raise DataError(f"{run} holds no network yet: it has neither {MODEL} nor {CHECKPOINT}")
    notes = unfinished(settings, server_round)
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
    return Exported(by_name(model), server_round, tuple(notes))


def _network_of_alone(settings: RunSettings, run: Path, client: int) -> Exported:
    checkpoint, name = checkpoint_of(run, settings), read_run_name(run)
    rounds = ClientRounds(name)
    rounds.load_state_arrays(unprefixed("wrapped", checkpoint.state))
    plan = rounds.plan(client, checkpoint.server_round)
    member = make_client(on_cpu(settings), client, RecordDict(), run)
    notes = unfinished(settings, checkpoint.server_round)
    if plan.state_round == FRESH:
        set_arrays(member.model, checkpoint.arrays)
        notes.append(f"client {client} has not trained: its network is the common start")
    elif isinstance(member, AloneClient):
        member.resume(plan, [])
    return Exported(by_name(member.model), checkpoint.server_round, tuple(notes))
