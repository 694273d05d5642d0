"""ZeroFL's Flower client: decode, train sparse, select, encode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.client import NumPyClient
from flwr.common import Scalar
from torch import nn

from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, get_specs, set_arrays
from zerofl_flwr.payload import MetaValue, SparseArray, decode, encode, is_payload
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
        The entries ``learning-rate`` and ``local-epochs`` of a round's config override it.
    partition_id : int
        Who this client is; samples and shuffles derive from (seed, round, partition_id), and the
        strategy orders replies by it.
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
        training: TrainingSettings | None = None,
        partition_id: int = 0,
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
        ClientFailedError
            If there is no data or training diverges.
        """
        plan = RoundPlan.from_config(config)
        received, patterns = self._receive(parameters, plan)
        outcome = train_locally(
            self.model,
            self.train_batches,
            self._training_of(config),
            seed=seed_of(self.seed, plan.server_round if plan else 0, self.partition_id),
            device=self.device,
            proximal_mu=float(config.get("proximal_mu", 0.0)),
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

    def _receive(
        self, arrays: list[Array], plan: RoundPlan | None
    ) -> tuple[list[Array], dict[str, Any]]:
        """Load the global model and set the round's sparsity; return dense arrays and patterns."""
        names = array_names(self.model)
        patterns: dict[str, Any] = {}
        if is_payload(arrays):
            entries = decode(arrays, get_specs(self.model), sender="server").entries
            if plan is not None and plan.frozen:
                patterns = {
                    name: entry.data.flat_indices
                    for name, entry in zip(names, entries, strict=True)
                    if isinstance(entry.data, SparseArray)
                }
            arrays = [
                dense_array(entry.data, name) for name, entry in zip(names, entries, strict=True)
            ]
        set_arrays(self.model, arrays)
        masked = masked_weight_names(self.model)
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
        return replace(
            self.training,
            learning_rate=float(config.get("learning-rate", self.training.learning_rate)),
            local_epochs=int(config.get("local-epochs", self.training.local_epochs)),
        )

    def _select(
        self,
        plan: RoundPlan,
        received: list[Array],
        trained: list[Array],
        patterns: Mapping[str, Any],
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


def dense_array(data: object, name: str) -> Array:
    """Return a downlink entry as a dense array; refuse what only an uplink may hold."""
    if isinstance(data, SparseArray):
        return data.to_dense()
    if hasattr(data, "__array_interface__"):
        return data  # type: ignore[return-value]
    raise PayloadError(
        f"the global model came as {type(data).__name__}; expected dense or CSR",
        sender="server",
        layer=name,
        field="encoding",
    )


def _masks(
    model: nn.Module, masked: list[str], patterns: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
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
