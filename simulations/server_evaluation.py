"""Test a run's global model on the server."""

from __future__ import annotations

from flwr.common import Scalar
from torch import nn

from simulations.batches import EVALUATION_BATCH, batches
from simulations.data import load_data
from simulations.devices import server_device
from simulations.settings import RunSettings
from zerofl_flwr.threads import available_cpus, limit_threads
from zerofl_flwr.training import evaluate


def evaluate_globally(model: nn.Module, settings: RunSettings) -> tuple[float, dict[str, Scalar]]:
    """Test a model as it stands on the joint test data.

    Returns
    -------
    tuple
        Mean loss, and ``{"accuracy": share of right answers}``.
    """
    # Clients idle meanwhile: the test may use every core. Their own limit is set per message.
    limit_threads(available_cpus())
    device = server_device(settings.simulation)
    test = batches(load_data(settings.data).test, EVALUATION_BATCH)
    outcome = evaluate(model.to(device), test, device=device)
    return outcome.loss, {"accuracy": outcome.accuracy}
