"""How an AdaSplit client (arXiv 2112.01637) goes on where it stood after an earlier message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from adasplit_flwr.client_state import ClientState, StateFolder
from adasplit_flwr.exchange import Progress
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.plans import FRESH, ExchangePlan, TestPlan
from adasplit_flwr.weights_payload import decode_weights
from zerofl_flwr.errors import ClientFailedError, DataError, PayloadError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import WireArray


def resume(
    trainer: LocalTrainer,
    plan: ExchangePlan | TestPlan,
    weights: Sequence[WireArray],
    find: Callable[[], ClientState],
) -> Progress:
    """Bring a trainer to the state that a plan names, and to the weights that came.

    Parameters
    ----------
    trainer : LocalTrainer
        Whatever it was used for before is overwritten.
    plan : ExchangePlan or TestPlan
        The message's plan.
    weights : sequence of NDArray or bytes
        A payload of weights, or nothing. They replace those of the state; Adam's moments stay.
    find : callable
        Gives the state; called unless the client is fresh.

    Returns
    -------
    Progress
        Of the state.

    Raises
    ------
    PayloadError
        If the payload does not fit, or a fresh client got none.
    ClientFailedError, DataError, SettingsError
        If the state is lost, damaged, or that of another network.
    """
    came: dict[str, Array] | None = None
    if weights:
        came = decode_weights(weights, trainer.specs(), server_round=plan.server_round)
    if plan.state_round == FRESH:
        if came is None:
            reason = "a client that has no state yet needs weights to start from; none came"
            raise PayloadError(reason, sender="server", field="arrays")
        trainer.start(came)
        return Progress()
    state = find()
    progress = Progress.from_arrays(state.arrays, state.iterations)
    of_progress = progress.to_arrays().keys()
    trainer.load({name: a for name, a in state.arrays.items() if name not in of_progress})
    if came is not None:
        trainer.replace_weights(came)
    return progress


def find_state(
    held: Sequence[ClientState],
    root: Path | None,
    *,
    run: str,
    partition_id: int,
    server_round: int,
) -> ClientState:
    """Return a client's state after a round: the one at hand, or else one that was saved.

    Parameters
    ----------
    held : sequence of ClientState
        What the process has in memory.
    root : Path or None
        Folder of saved states.
    run : str
        Name of the run.
    partition_id : int
        The client.
    server_round : int
        The round.

    Raises
    ------
    ClientFailedError
        If neither is of this run, client and round, or the saved one is damaged.
    """
    wanted = (run, partition_id, server_round)
    for state in held:
        if (state.run, state.partition_id, state.server_round) == wanted:
            return state
    folder = "no folder of states was given"
    if root is not None:
        folder = f"{root} does not hold it"
        try:
            saved = StateFolder(root, run).load(partition_id, server_round)
        except DataError as error:  # as good as none: the client has to begin again
            saved, folder = None, str(error)
        if saved is not None:
            return saved
    has = " and ".join(
        f"client {state.partition_id} of run {state.run} after round {state.server_round}"
        for state in held
    )
    raise ClientFailedError(
        f"{lost_state(partition_id, run, server_round)}: memory holds {has or 'nothing'}, and "
        f"{folder}"
    )


def lost_state(partition_id: int, run: str, server_round: int) -> str:
    """Say that a client's state of a round is lost, in the words by which the server knows it."""
    return f"client {partition_id} of run {run}: the state of round {server_round} is lost"
