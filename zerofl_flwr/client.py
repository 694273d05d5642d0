"""ZeroFL's Flower client: decode, train sparse, select, encode."""

from __future__ import annotations

import logging

from flwr.client import NumPyClient
from flwr.common import Scalar
from torch import nn

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.exchange import Received, read_downlink, write_reply
from zerofl_flwr.fit_config import number_in, training_in
from zerofl_flwr.follow import apply_plan
from zerofl_flwr.memory import memory_metric
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, get_specs, set_arrays
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.sparsify import masked_weight_names
from zerofl_flwr.threads import use_hardware
from zerofl_flwr.training import (
    Batches,
    LossFunction,
    TrainingSettings,
    evaluate,
    seed_of,
    train_locally,
)

_log = logging.getLogger("zerofl_flwr")


class ZeroFLClient(NumPyClient):
    """A client that trains with sparse weights and activations and uploads the top of them.

    Parameters
    ----------
    model : nn.Module
        The model, already through :func:`zerofl_flwr.sparsify`. A plain model trains dense and
        uploads every weight; in a frozen round, those that the server's masks keep.
    train_batches : iterable of (inputs, labels)
        Usually a ``DataLoader`` that shuffles.
    validation_batches : iterable of (inputs, labels), optional
        What ``evaluate`` tests on; without it, evaluating is an error.
    training : TrainingSettings
        The entries ``learning-rate`` and ``local-epochs`` of a round's config override it; an entry
        ``proximal_mu``, which Flower's FedProx sends, adds its penalty.
    partition_id : int
        Who this client is, usually ``context.node_config["partition-id"]``; shuffles derive from
        (seed, round, partition_id), and the strategy orders replies by it.
    seed : int
        Seed of the run.
    device : str
        ``"cpu"`` or ``"cuda"``.
    threads : int, optional
        CPUs given to this client; None leaves torch's setting alone.
    loss_function : callable
        Mean loss of a batch.

    Notes
    -----
    Under :class:`strategies.ZeroFL` the round's sparsity, rule and mask ratio come with the
    message. Under any other strategy the client replies with its plain dense weights. Behind the
    mod :func:`zerofl_flwr.sparse_uplink`, which it does not need, it works as without.
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
        self.training = training or TrainingSettings()
        self.partition_id = partition_id
        self.seed = seed
        self.device = device
        self.loss_function = loss_function

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """Tell the strategy who this client is."""
        return {"partition-id": self.partition_id}

    def get_parameters(self, config: dict[str, Scalar]) -> list[Array]:
        """Return the model's arrays, dense, in state_dict order."""
        return get_arrays(self.model)

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        """Train one round and return the payload, the number of samples, and metrics.

        Metrics are ``train_loss`` (mean per sample), ``train_seconds``, and ``client_memory_mb``
        (peak of the process).

        Raises
        ------
        PayloadError
            If the global model cannot be decoded, does not fit, or is another round's.
        SettingsError
            If an entry of the config has a wrong type or value.
        ClientFailedError
            If there is no data or training diverges.
        """
        plan = RoundPlan.from_config(config)
        training = training_in(config, self.training)
        proximal_mu = number_in(config, "proximal_mu", 0.0)
        received = self._receive(parameters, plan)
        outcome = train_locally(
            self.model,
            self.train_batches,
            training,
            # Without a plan nobody says which round it is: shuffles must not repeat each other.
            seed=seed_of(self.seed, plan.server_round, self.partition_id) if plan else None,
            device=self.device,
            proximal_mu=proximal_mu,
            loss_function=self.loss_function,
        )
        return (
            self._reply(plan, received, get_arrays(self.model)),
            outcome.num_examples,
            {"train_loss": outcome.loss, "train_seconds": outcome.seconds, **memory_metric()},
        )

    def evaluate(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Test the global model, sparse, on the validation data.

        Returns
        -------
        tuple
            Mean loss, number of samples, and ``{"accuracy": share of right answers}``.
        """
        if self.validation_batches is None:
            raise SettingsError("this client was given no validation data to evaluate on")
        self._receive(parameters, RoundPlan.from_config(config))
        outcome = evaluate(
            self.model,
            self.validation_batches,
            device=self.device,
            loss_function=self.loss_function,
        )
        return outcome.loss, outcome.num_examples, {"accuracy": outcome.accuracy}

    def _receive(self, arrays: list[Array], plan: RoundPlan | None) -> Received:
        """Load the global model and set the round's sparsity.

        Everything that an earlier message left in the model is overwritten, so that a process may
        keep one model for all of its clients.
        """
        names = array_names(self.model)
        received = read_downlink(arrays, get_specs(self.model), plan, names=names)
        set_arrays(self.model, received.arrays)
        if plan is None:
            return received
        if masked_weight_names(self.model):
            patterns = {names[position]: where for position, where in received.patterns.items()}
            apply_plan(self.model, plan, patterns if received.encoded else None)
        elif plan.sparsity:
            _log.warning(
                "client %d trains and uploads dense: its model did not go through sparsify(), but "
                "the round's sparsity is %g",
                self.partition_id,
                plan.sparsity,
            )
        return received

    def _reply(
        self, plan: RoundPlan | None, received: Received, trained: list[Array]
    ) -> list[Array]:
        # A frozen model that is no payload has been through the mod, which kept the positions: it
        # alone can write the values there.
        if plan is None or (plan.frozen and not received.encoded):
            return trained
        names, masked = array_names(self.model), set(masked_weight_names(self.model))
        # Where masks are frozen the server takes values there, whatever this client masks.
        positions = [p for p, name in enumerate(names) if name in masked or p in received.patterns]
        return write_reply(plan, received, trained, positions, names=names)
