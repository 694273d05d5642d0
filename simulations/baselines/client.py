"""The client that plain averaging needs: it trains the global model and replies with its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.common import Scalar

from strategies.dense_replies import ROUND
from strategies.fednova import LOCAL_STEPS, MOMENTUM
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.fit_config import number_in
from zerofl_flwr.model_arrays import Array, get_arrays, set_arrays
from zerofl_flwr.model_client import ModelClient, training_metrics
from zerofl_flwr.training import TrainingOutcome


class BaselineClient(ModelClient):
    """A client of FedAvg, FedProx, Flower's server optimizers, and :class:`strategies.FedNova`.

    Parameters
    ----------
    *arguments, **options
        As for :class:`zerofl_flwr.model_client.ModelClient`. Shuffles derive from (seed, round,
        partition_id) where the config has an entry ``round``.

    Raises
    ------
    SettingsError
        If there is no such device.
    """

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        """Train the global model for a round.

        Returns
        -------
        tuple
            The trained model's arrays, the number of samples, and the metrics ``train_loss`` (mean
            per sample), ``train_seconds``, ``client_memory_mb`` (peak of the process),
            ``local_steps`` (batches taken), and the config's ``round``.

        Raises
        ------
        PayloadError
            If the arrays are those of another model.
        SettingsError
            If an entry of the config has a wrong type or value, or says another momentum.
        ClientFailedError
            If there is no data or training diverges.
        """
        self._check_momentum(config)
        set_arrays(self.model, parameters)
        server_round = _round_in(config)
        outcome = self.train(config, server_round)
        told = {} if server_round is None else {ROUND: server_round}
        return get_arrays(self.model), outcome.num_examples, {**figures(outcome), **told}

    def evaluate(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Test the global model on the validation data.

        Returns
        -------
        tuple
            Mean loss, number of samples, and ``{"accuracy": share of right answers}``.
        """
        set_arrays(self.model, parameters)
        return self.test()

    def _check_momentum(self, config: Mapping[str, Any]) -> None:
        """Refuse to train otherwise than FedNova reckons with."""
        if MOMENTUM not in config:
            return
        wanted, own = number_in(config, MOMENTUM, 0.0), self.training
        if own.optimizer != "sgd" or own.momentum != wanted:
            raise SettingsError(
                f"the server reckons with sgd and momentum {wanted:g}, but this client trains with "
                f"{own.optimizer} and momentum {own.momentum:g}"
            )


def figures(outcome: TrainingOutcome) -> dict[str, Scalar]:
    """Return what a reply tells of the training, and of the process."""
    return {**training_metrics(outcome), LOCAL_STEPS: outcome.steps}


def _round_in(config: Mapping[str, Any]) -> int | None:
    server_round = config.get(ROUND)
    if server_round is not None and type(server_round) is not int:
        raise SettingsError(f"config entry {ROUND} is {server_round!r}; expected an int")
    return server_round
