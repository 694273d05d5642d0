"""What of an AdaSplit run's data and settings cannot work together, or hardly does."""

from __future__ import annotations

from collections.abc import Sequence

from simulations.data import FederatedData
from simulations.settings import RunSettings
from zerofl_flwr.errors import SettingsError

_NAMED_CLIENTS = 5


def check_split_run(settings: RunSettings, data: FederatedData) -> None:
    """Refuse what would fail in the middle of a run, or have no effect.

    Raises
    ------
    SettingsError
        If only full batches are to be taken and a client has too few samples for one; or if tests
        are to happen at the server and nobody tests.
    """
    if settings.adasplit.inference == "server" and settings.simulation.evaluating_fraction == 0:
        raise SettingsError(
            "inference is 'server', but fraction-evaluate is 0, so that nobody tests: raise it, or "
            "leave inference at 'client'"
        )
    if not settings.split.full_batches:
        return
    batch_size = settings.training.batch_size
    for partition_id in range(data.num_partitions):
        samples = data.training_labels(partition_id).size
        if samples < batch_size:
            raise SettingsError(
                f"full-batches is on, but client {partition_id} trains on {samples} samples, which "
                f"do not fill one batch: lower batch-size, now {batch_size}"
            )


def split_run_warnings(settings: RunSettings, data: FederatedData) -> list[str]:
    """Say what runs, but not as one may think.

    Returns
    -------
    list of str
        A line each: clients whose training samples are of one class, which their own loss cannot
        tell apart; a local phase without a round; and client parts that are shared at other times
        than the run ends or tests.
    """
    adasplit, rounds = settings.adasplit, settings.simulation.rounds
    lines = []
    if adasplit.kappa > 0 and adasplit.local_rounds(rounds) == 0:
        lines.append(
            f"kappa is {adasplit.kappa}, but of {rounds} rounds that is less than one: there is no "
            "local phase"
        )
    if adasplit.local_loss:
        of_one_class = [
            partition_id
            for partition_id in range(data.num_partitions)
            if len(set(data.training_labels(partition_id).tolist())) == 1
        ]
        if of_one_class:
            lines.append(
                f"{_clients(of_one_class)} only one class to train on: a contrastive loss of 0, "
                "from which a client part learns nothing"
            )
    return lines + _sharing_warnings(settings)


def _sharing_warnings(settings: RunSettings) -> list[str]:
    """Hold the rounds in which client parts are shared against those of tests, and the last."""
    adasplit, simulation = settings.adasplit, settings.simulation
    clients = settings.data.num_clients if adasplit.client_weights == "relayed" else 1
    local, in_local = adasplit.local_rounds(simulation.rounds), clients * adasplit.share_every
    finishing = adasplit.uploads(clients) if adasplit.returns_gradients else 0
    length = in_local + finishing
    # Where a period goes from the local phase into the global one, it has another length.
    if not adasplit.shares_weights or local % in_local:
        return []

    def beyond(server_round: int) -> int:
        """Count the rounds since a period was full."""
        passed = server_round - local
        return server_round % in_local if passed <= 0 else passed % length

    period = "an average of client parts" if clients == 1 else "a pass through all clients"
    period = f"{period} takes {length} rounds"
    if finishing:
        period += f", {finishing} of them for the last gradients"
    lines, every = [], simulation.evaluate_every
    if rest := beyond(simulation.rounds):
        lines.append(
            f"rounds is {simulation.rounds}, but {period}: the last one is cut short, after {rest}"
        )
    tested = range(every, simulation.rounds, every) if simulation.evaluating_fraction else ()
    if any(map(beyond, tested)):
        lines.append(
            f"evaluate-every is {every}, but {period}: a test in between is of the part that was "
            "shared last"
        )
    return lines


def _clients(partitions: Sequence[int]) -> str:
    if len(partitions) == 1:
        return f"client {partitions[0]} has"
    named = ", ".join(map(str, partitions[:_NAMED_CLIENTS]))
    more = ", ..." if len(partitions) > _NAMED_CLIENTS else ""
    return f"{len(partitions)} clients ({named}{more}) have"
