"""AdaSplit's parts of a run, from its settings: client and strategy."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from flwr.app import RecordDict

from adasplit_flwr import AdaSplitClient
from adasplit_flwr.batches import ShuffledBatches, epoch_sizes
from adasplit_flwr.dry_run import try_client
from adasplit_flwr.split import SplitModel
from simulations.batches import EVALUATION_BATCH, LazySeekable
from simulations.client_parts import client_options, state_options
from simulations.data import FederatedData, load_data
from simulations.run_models import split_model
from simulations.settings import RunSettings
from strategies import AdaSplit, AdaSplitRoundReport, AdaSplitTestReport
from strategies.adasplit_options import MAX_UPLOAD_MB
from strategies.adasplit_replies import dense_bytes
from strategies.adasplit_server import check_mask_memory

MASKS = "masks"
"""Folder of a run with the masks that do not fit into memory."""


def make_client(
    settings: RunSettings, partition_id: int, state: RecordDict, folder: Path
) -> AdaSplitClient:
    """Build the client that holds one partition; its tensors are made when they are needed.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    partition_id : int
        Which partition.
    state : RecordDict
        What lasts from message to message: a context's state.
    folder : Path
        The run's folder; clients keep their state there as well, unless the settings name another
        folder, or the run keeps no checkpoint that they would have to go with.
    """
    data = load_data(settings.data)

    def training() -> ShuffledBatches:
        train = data.partition(partition_id).train
        return ShuffledBatches(
            train, settings.training.batch_size, full=settings.split.full_batches
        )

    return AdaSplitClient(
        _model(settings),
        LazySeekable(training),
        **client_options(settings, partition_id),
        **state_options(settings, folder, state),
        num_classes=data.num_classes,
    )


def make_strategy(
    settings: RunSettings,
    folder: Path | None,
    run: str = "trial",
    on_round: Callable[[AdaSplitRoundReport], None] | None = None,
    on_test: Callable[[AdaSplitTestReport], None] | None = None,
) -> AdaSplit:
    """Build the strategy of a run.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    folder : Path or None
        The run's folder; None, for a trial, keeps no files.
    run : str
        Name of the run, under which its clients keep their state. Their messages tell it to them.
    on_round, on_test : callable, optional
        Who is told of each round, and of each test.

    Raises
    ------
    SettingsError
        If ``mask_memory_mb`` has no room for one client's mask; in a trial as well.
    """
    data, simulation = load_data(settings.data), settings.simulation
    one_at_a_time = settings.adasplit.client_weights == "relayed"
    split = split_model(settings)
    budget = settings.budget.to_budget()
    activation = tuple(try_client(split.client, data.sample_shape).shape[1:])
    largest_mb = dense_bytes(most_samples(settings, data), activation) / 10**6
    check_mask_memory(split.server, settings.adasplit)
    return AdaSplit(
        split,
        settings.adasplit,
        rounds=simulation.rounds,
        sample_shape=data.sample_shape,
        num_classes=data.num_classes,
        budget=budget,
        batch_sizes=None if budget is None else _batch_sizes(settings, data),
        fraction_fit=1.0 if one_at_a_time else 0.0,
        min_fit_clients=1 if one_at_a_time else simulation.clients_per_round,
        min_available_clients=settings.data.num_clients,
        evaluate_every=simulation.evaluate_every,
        fraction_evaluate=simulation.evaluating_fraction,
        max_batch_size=max(EVALUATION_BATCH, settings.training.batch_size + 1),
        max_upload_mb=max(MAX_UPLOAD_MB, largest_mb),
        threads=settings.split.server_threads,
        run=run,
        folder=None if folder is None else folder / MASKS,
        seed=settings.seed,
        on_round=on_round,
        on_test=on_test,
    )


def most_samples(settings: RunSettings, data: FederatedData) -> int:
    """Bound the samples that a client may upload in one message, without making any tensors.

    Parameters
    ----------
    settings : RunSettings
        The run's.
    data : FederatedData
        Its data.
    """
    samples = int(data.label_counts().sum(axis=1).max())  # of the largest partition
    iterations = settings.adasplit.iterations_per_round
    if iterations is not None:  # from as many epochs as that takes
        samples = iterations * min(settings.training.batch_size + 1, samples)
    if settings.adasplit.inference == "server":
        tested = max(map(data.validation_size, range(data.num_partitions)))
        samples = max(samples, tested)
    return samples


def _batch_sizes(settings: RunSettings, data: FederatedData) -> dict[int, tuple[int, ...]]:
    """Return the samples of each batch of an epoch, by client, without making any tensors."""
    size, full = settings.training.batch_size, settings.split.full_batches
    return {
        client: epoch_sizes(data.training_labels(client).size, size, full=full)
        for client in range(data.num_partitions)
    }


@lru_cache(maxsize=2)
def _model(settings: RunSettings) -> SplitModel:
    """Keep one model per process: each message overwrites all of its state."""
    return split_model(settings)
