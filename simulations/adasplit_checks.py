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
        tell apart; and a local phase without a round.
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
    return lines


def _clients(partitions: Sequence[int]) -> str:
    if len(partitions) == 1:
        return f"client {partitions[0]} has"
    named = ", ".join(map(str, partitions[:_NAMED_CLIENTS]))
    more = ", ..." if len(partitions) > _NAMED_CLIENTS else ""
    return f"{len(partitions)} clients ({named}{more}) have"
