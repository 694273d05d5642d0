"""What clients that train one whole model share: data, training, the test, and who they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.client import NumPyClient
from flwr.common import Scalar
from torch import nn

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.fit_config import number_in, training_in
from zerofl_flwr.memory import memory_metric
from zerofl_flwr.model_arrays import Array, get_arrays
from zerofl_flwr.threads import use_hardware
from zerofl_flwr.training import (
    Batches,
    LossFunction,
    TrainingOutcome,
    TrainingSettings,
    evaluate,
    seed_of,
    train_locally,
)


class ModelClient(NumPyClient):
    """A client that trains and tests a model; what it gets and what it replies is its subclass's.

    Parameters
    ----------
    model : nn.Module
        The model; one may serve many clients of a process, as each message overwrites its state.
    train_batches : iterable of (inputs, labels)
        Usually a ``DataLoader`` that shuffles.
    validation_batches : iterable of (inputs, labels), optional
        What ``evaluate`` tests on; without it, evaluating is an error.
    partition_id : int
        Who this client is, usually ``context.node_config["partition-id"]``; strategies order
        replies by it.
    training : TrainingSettings
        Entries of a round's config override it (``learning-rate``, ``local-epochs``), or add to it
        (``proximal_mu``, which Flower's FedProx sends).
    seed : int
        Seed of the run; shuffles derive from (seed, round, partition_id).
    device : str
        ``"cpu"`` or ``"cuda"``.
    threads : int, optional
        CPUs given to this client; None leaves torch's setting alone.
    loss_function : callable
        Mean loss of a batch.

    Raises
    ------
    SettingsError
        If there is no such device.
    """

    def __init__(
        self,
        model: nn.Module,
        train_batches: Batches,
        validation_batches: Batches | None = None,
        *,
        partition_id: int,
        training: TrainingSettings | None = None,
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
        loss_function: LossFunction = nn.functional.cross_entropy,
    ) -> None:
        use_hardware(device, threads)
        self.model = model.to(device)
        self.train_batches = train_batches
        self.validation_batches = validation_batches
        self.partition_id = partition_id
        self.training = training or TrainingSettings()
        self.seed = seed
        self.device = device
        self.loss_function = loss_function

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """Tell the strategy who this client is."""
        return {"partition-id": self.partition_id}

    def get_parameters(self, config: dict[str, Scalar]) -> list[Array]:
        """Return the model's arrays, dense, in state_dict order."""
        return get_arrays(self.model)

    def train(
        self,
        config: Mapping[str, Any],
        server_round: int | None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        correct: Callable[[], None] | None = None,
    ) -> TrainingOutcome:
        """Train the model as it stands, with what the config says of the round.

        Parameters
        ----------
        config : mapping
            The message's.
        server_round : int or None
            The round. Where nobody tells it, shuffles derive from no seed, as they would repeat
            each other.
        optimizer, correct
            As for :func:`zerofl_flwr.training.train_locally`.

        Raises
        ------
        SettingsError
            If an entry of the config has a wrong type or value.
        ClientFailedError
            If there is no data or training diverges.
        """
        seed = None
        if server_round is not None:
            seed = seed_of(self.seed, server_round, self.partition_id)
        return train_locally(
            self.model,
            self.train_batches,
            training_in(config, self.training),
            seed=seed,
            device=self.device,
            proximal_mu=number_in(config, "proximal_mu", 0.0),
            optimizer=optimizer,
            correct=correct,
            loss_function=self.loss_function,
        )

    def test(self) -> tuple[float, int, dict[str, Scalar]]:
        """Test the model as it stands on the validation data.

        Returns
        -------
        tuple
            Mean loss, number of samples, and ``{"accuracy": share of right answers}``.

        Raises
        ------
        SettingsError
            If this client was given nothing to test on.
        """
        if self.validation_batches is None:
            raise SettingsError("this client was given no validation data to evaluate on")
        outcome = evaluate(
            self.model,
            self.validation_batches,
            device=self.device,
            loss_function=self.loss_function,
        )
        return outcome.loss, outcome.num_examples, {"accuracy": outcome.accuracy}


def training_metrics(outcome: TrainingOutcome) -> dict[str, Scalar]:
    """Return what a reply tells of the training, and of the process.

    ``train_loss`` (mean per sample), ``train_seconds``, and ``client_memory_mb`` (the process's
    peak).
    """
    return {"train_loss": outcome.loss, "train_seconds": outcome.seconds, **memory_metric()}
