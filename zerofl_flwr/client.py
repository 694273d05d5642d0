"""ZeroFL's Flower client: decode, train sparse, select, encode."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import Scalar
from numpy.typing import NDArray
from torch import nn

from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, get_specs, set_arrays
from zerofl_flwr.payload import Entry, MetaValue, SparseArray, decode, encode, is_payload
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.sparsify import (
    freeze_masks,
    masked_weight_names,
    set_sparsity,
    set_topk_period,
    unfreeze_masks,
)
from zerofl_flwr.threads import limit_threads
from zerofl_flwr.training import (
    Batches,
    LossFunction,
    TrainingSettings,
    evaluate,
    seed_of,
    train_locally,
)
from zerofl_flwr.uplink import uplink_entries, uploaded_fraction

Patterns = dict[str, NDArray[np.int64]]
"""Flat positions that a frozen mask keeps, by layer."""


_log = logging.getLogger("zerofl_flwr")


class ZeroFLClient(NumPyClient):
    """A client that trains with sparse weights and activations and uploads the top of them.

    Parameters
    ----------
    model : nn.Module
        The model, already through :func:`zerofl_flwr.sparsify`. A plain model trains dense and
        uploads every weight.
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
    message. Under any other strategy the client replies with its plain dense weights.
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
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise SettingsError(f"device {device!r} was asked for, but torch finds no CUDA device")
        if threads is not None:
            limit_threads(threads)
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

        Metrics are ``train_loss`` (mean per sample) and ``train_seconds``.

        Raises
        ------
        PayloadError
            If the global model cannot be decoded or does not fit.
        SettingsError
            If an entry of the config has a wrong type or value.
        ClientFailedError
            If there is no data or training diverges.
        """
        plan = RoundPlan.from_config(config)
        training = self._training_of(config)
        proximal_mu = _number(config, "proximal_mu", 0.0)
        received, patterns = self._receive(parameters, plan)
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
        trained = get_arrays(self.model)
        reply = trained if plan is None else self._select(plan, received, trained, patterns)
        return (
            reply,
            outcome.num_examples,
            {"train_loss": outcome.loss, "train_seconds": outcome.seconds},
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

    def _receive(self, arrays: list[Array], plan: RoundPlan | None) -> tuple[list[Array], Patterns]:
        """Load the global model and set the round's sparsity.

        Everything that an earlier message left in the model is overwritten, so that a process may
        keep one model for all of its clients.

        Returns
        -------
        tuple
            The global model, dense, and the patterns of frozen masks.
        """
        names = array_names(self.model)
        patterns: Patterns = {}
        if is_payload(arrays):
            entries = decode(arrays, get_specs(self.model), sender="server").entries
            if plan is not None and plan.frozen:
                patterns = {
                    name: entry.data.flat_indices
                    for name, entry in zip(names, entries, strict=True)
                    if isinstance(entry.data, SparseArray)
                }
            arrays = [dense_array(entry) for entry in entries]
        set_arrays(self.model, arrays)
        masked = masked_weight_names(self.model)
        if plan is not None and plan.sparsity and not masked:
            _log.warning(
                "client %d trains and uploads dense: its model did not go through sparsify(), but "
                "the round's sparsity is %g",
                self.partition_id,
                plan.sparsity,
            )
        if plan is not None and masked:
            set_sparsity(
                self.model, plan.sparsity, plan.activation_sparsity, plan.gradient_sparsity
            )
            set_topk_period(self.model, plan.topk_period)
            unfreeze_masks(self.model)
            if plan.frozen:
                freeze_masks(self.model, _masks(self.model, masked, patterns))
        return arrays, {name: patterns[name] for name in masked if name in patterns}

    def _training_of(self, config: Mapping[str, Scalar]) -> TrainingSettings:
        epochs = config.get("local-epochs", self.training.local_epochs)
        return replace(
            self.training,
            learning_rate=_number(config, "learning-rate", self.training.learning_rate),
            local_epochs=epochs,  # type: ignore[arg-type]  # the settings check it
        )

    def _select(
        self,
        plan: RoundPlan,
        received: list[Array],
        trained: list[Array],
        patterns: Patterns,
    ) -> list[Array]:
        names, masked = array_names(self.model), masked_weight_names(self.model)
        entries = uplink_entries(
            names,
            received,
            trained,
            masked=masked,
            rule=plan.rule,
            keep=uploaded_fraction(plan.sparsity, plan.mask_ratio),
            patterns=patterns or None,
        )
        positions = [position for position, name in enumerate(names) if name in masked]
        return encode(entries, reply_meta(plan, positions))


def reply_meta(plan: RoundPlan, masked: list[int]) -> dict[str, MetaValue]:
    """Return what a reply says of itself: its round, and the positions of its masked arrays."""
    return {"round": plan.server_round, "masked": ",".join(map(str, masked))}


def dense_array(entry: Entry) -> Array:
    """Return an entry of the global model as a dense array.

    Raises
    ------
    PayloadError
        If it is what only an uplink may hold: a difference, or a part without its positions.
    """
    if entry.content != "weights":
        raise PayloadError(
            f"the global model came as {entry.content}; expected weights",
            sender="server",
            layer=entry.name,
            field="content",
        )
    if isinstance(entry.data, SparseArray):
        return entry.data.to_dense()
    if isinstance(entry.data, np.ndarray):
        return entry.data
    raise PayloadError(
        f"the global model came as {type(entry.data).__name__}; expected dense or CSR",
        sender="server",
        layer=entry.name,
        field="encoding",
    )


def _number(config: Mapping[str, Scalar], key: str, default: float) -> float:
    """Read a number from 0 from a round's config."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise SettingsError(f"config entry {key} is {value!r}; expected a number from 0")
    return float(value)


def _masks(model: nn.Module, masked: list[str], patterns: Patterns) -> dict[str, torch.Tensor]:
    """Turn flat positions into boolean masks of the weights' shapes."""
    state = model.state_dict()
    masks = {}
    for name in masked:
        if name not in patterns:
            raise PayloadError(
                "the mask is frozen but this layer came without its pattern",
                sender="server",
                layer=name,
                field="encoding",
            )
        mask = torch.zeros(state[name].numel(), dtype=torch.bool)
        mask[torch.from_numpy(patterns[name])] = True
        masks[name] = mask.reshape(state[name].shape)
    return masks
