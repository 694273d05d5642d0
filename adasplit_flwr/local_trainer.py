"""A client's training in AdaSplit (arXiv 2112.01637): its part of the network and the head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn

from adasplit_flwr.adam_state import adam_arrays, adam_specs, load_adam
from adasplit_flwr.buffers import buffers_restored
from adasplit_flwr.contrastive import nt_xent
from adasplit_flwr.plans import ExchangePlan
from adasplit_flwr.weights_payload import CLIENT, HEAD, load_named, named_arrays, named_specs
from zerofl_flwr.errors import ClientFailedError, PayloadError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import TensorSpec
from zerofl_flwr.training import seed_of, seeded

_WEIGHTS = "weights/"
_DROPOUT_STREAM = 7  # sets these draws apart from others of the same seed


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """What a client's step on one batch gave.

    Parameters
    ----------
    activations : Tensor, shape (n, *activation shape)
        Output of the client part before the step, detached.
    loss : float
        Contrastive loss of the batch before the step, without the penalty on activations; 0.0
        without a loss of the client's own.
    """

    activations: torch.Tensor
    loss: float


class LocalTrainer:
    """Trains a client part and its head with Adam, on their own loss and on the server's gradient.

    The modules are changed in place. They may serve one client after the other: :meth:`start` and
    :meth:`load` overwrite all that training leaves in them.

    Parameters
    ----------
    client : nn.Module
        Client part of the cut network, on `device`.
    head : nn.Module
        Projection head, on `device`.
    seed, partition_id : int
        The run's and the client's. Dropout and the like draw from torch's global generators, seeded
        by (seed, stream, iteration, partition_id) for each batch and restored afterwards.
    device : str
        ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    SettingsError
        If neither the client part nor the head has anything to train.
    """

    def __init__(
        self,
        client: nn.Module,
        head: nn.Module,
        *,
        seed: int,
        partition_id: int,
        device: str = "cpu",
    ) -> None:
        self._parts = {CLIENT: client, HEAD: head}
        self._client = client
        self._head = head
        self._seed = seed
        self._partition_id = partition_id
        self._device = device
        self._trained = {
            f"{part}.{name}": parameter
            for part, module in self._parts.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        if not self._trained:
            raise SettingsError("neither the client part nor the head has trainable parameters")
        self._adam = torch.optim.Adam(self._trained.values())

    def specs(self) -> dict[str, TensorSpec]:
        """Return shape and dtype of the arrays of client part and head, by name."""
        return named_specs(self._parts)

    def weights(self) -> dict[str, Array]:
        """Copy the arrays of client part and head, by name."""
        return named_arrays(self._parts)

    def start(self, weights: Mapping[str, Array]) -> None:
        """Begin a client's training with these weights and a new Adam.

        Parameters
        ----------
        weights : mapping of str to ndarray
            Float arrays of client part and head, as
            :func:`adasplit_flwr.weights_payload.decode_weights` returns them. Batch counts of
            normalisation layers begin at 0; other arrays are constants of the network.

        Raises
        ------
        PayloadError
            If an array does not fit.
        """
        self.replace_weights(weights)
        self._adam.state.clear()
        for part in self._parts.values():
            for name, buffer in part.named_buffers():
                if name.rpartition(".")[2] == "num_batches_tracked":
                    buffer.zero_()

    def replace_weights(self, weights: Mapping[str, Array]) -> None:
        """Replace arrays of client part and head; Adam's moments stay.

        Raises
        ------
        PayloadError
            If an array does not fit.
        """
        load_named(self._parts, weights, sender="server")

    def step(
        self, inputs: torch.Tensor, labels: torch.Tensor, plan: ExchangePlan, iteration: int
    ) -> StepOutcome:
        """Run one batch through the client part and, with a local loss, take a step on it.

        The loss is ``nt_xent(head(a), labels, temperature)`` plus `activation_penalty` times the
        mean over samples of the sum of ``|a|``, a being the activations. A part whose gradient is
        zero throughout, as that of a batch with a single class, takes no step: Adam would scale
        weight decay alone up to the whole learning rate.

        Parameters
        ----------
        inputs : Tensor, shape (n, ...)
            Samples.
        labels : Tensor of integers, shape (n,)
            Their classes.
        plan : ExchangePlan
            What to train, with what Adam.
        iteration : int
            Number of the batch in the client's run, from 0.

        Raises
        ------
        ClientFailedError
            If the loss is not finite; nothing was trained on the batch then.
        """
        for part in self._parts.values():
            part.train()
        inputs, labels = inputs.to(self._device), labels.to(self._device)
        with self._randomness_of(iteration):
            if not plan.local_loss:
                with torch.no_grad():
                    return StepOutcome(self._client(inputs), 0.0)
            with torch.enable_grad():
                activations = self._client(inputs)
                # A copy, for a head may begin with an operation in place.
                uploaded = activations.detach().clone() if plan.upload else activations.detach()
                penalty = plan.activation_penalty and _penalty(activations, plan)
                own = nt_xent(self._head(activations), labels, plan.temperature)
                loss = own + penalty
            value = float(loss.detach())
            if not math.isfinite(value):
                raise ClientFailedError(
                    f"training diverged at learning rate {plan.learning_rate}, iteration "
                    f"{iteration}: the loss of a batch is {value}"
                )
            self._adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            for part in self._parts.values():
                if not any(bool(p.grad.any()) for p in part.parameters() if p.grad is not None):
                    part.zero_grad(set_to_none=True)  # so Adam leaves it alone
            self._take_step(plan)
        return StepOutcome(uploaded, float(own.detach()))

    def apply_gradient(
        self, inputs: torch.Tensor, gradient: Array, plan: ExchangePlan, iteration: int
    ) -> None:
        """Take a step of the client part with the server's gradient of an earlier batch.

        The batch runs through the client part again, as that is by now, with the same random
        numbers. It does not count again in running statistics, such as BatchNorm's.

        Parameters
        ----------
        inputs : Tensor, shape (n, ...)
            The batch's samples.
        gradient : ndarray, shape (n, *activation shape)
            Of the server's loss by the batch's activations.
        plan : ExchangePlan
            With what Adam.
        iteration : int
            The number that the batch had in :meth:`step`.

        Raises
        ------
        PayloadError
            If the gradient has another shape than the activations.
        SettingsError
            If the client part has nothing to train.
        """
        self._client.train()
        with buffers_restored(self._client), self._randomness_of(iteration), torch.enable_grad():
            activations = self._client(inputs.to(self._device))
            if activations.shape != gradient.shape:
                reason = f"{tuple(activations.shape)} expected, {gradient.shape} came"
                raise PayloadError(reason, sender="server", layer="gradients", field="shape")
            if not activations.requires_grad:
                raise SettingsError(
                    "the server sends gradients, but the client part has no trainable parameters"
                )
            self._adam.zero_grad(set_to_none=True)
            activations.backward(torch.tensor(gradient).to(activations))
            self._take_step(plan)

    def state(self) -> dict[str, Array]:
        """Copy everything that the next step depends on.

        Returns
        -------
        dict of str to ndarray
            ``weights/`` with the names of client part and head, as :meth:`weights`; for each
            parameter that has had a gradient ``exp_avg/``, ``exp_avg_sq/`` and ``steps/`` with its
            name.
        """
        weights = {f"{_WEIGHTS}{name}": array for name, array in self.weights().items()}
        return weights | adam_arrays(self._adam, self._trained)

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take back what :meth:`state` returned, so that training goes on bit for bit.

        Raises
        ------
        SettingsError
            If the state is of other parts; nothing has changed then.
        """
        specs = self.specs()
        trained = {name: specs[name] for name in self._trained}
        weights = {f"{_WEIGHTS}{name}": spec for name, spec in specs.items()}
        _check_state(arrays, weights | adam_specs(arrays, trained))
        self.replace_weights({name: arrays[f"{_WEIGHTS}{name}"] for name in specs})
        load_adam(self._adam, self._trained, arrays)

    def _randomness_of(self, iteration: int) -> AbstractContextManager[None]:
        seed = seed_of(self._seed, _DROPOUT_STREAM, iteration, self._partition_id)
        return seeded(seed, self._device)

    def _take_step(self, plan: ExchangePlan) -> None:
        for group in self._adam.param_groups:
            group["lr"], group["weight_decay"] = plan.learning_rate, plan.weight_decay
        self._adam.step()


def _penalty(activations: torch.Tensor, plan: ExchangePlan) -> torch.Tensor:
    return plan.activation_penalty * activations.abs().sum() / len(activations)


def _check_state(arrays: Mapping[str, Array], expected: Mapping[str, TensorSpec]) -> None:
    origin = ": it was made with another client part or head"
    if missing := expected.keys() - arrays.keys():
        raise SettingsError(f"the client's state lacks {min(missing)}{origin}")
    if unknown := arrays.keys() - expected.keys():
        raise SettingsError(f"the client's state holds {min(unknown)}{origin}")
    for name, spec in expected.items():
        came = TensorSpec(arrays[name].shape, arrays[name].dtype)
        if came != spec:
            raise SettingsError(
                f"{name} of the client's state is {came.dtype} of shape {came.shape}, not "
                f"{spec.dtype} of {spec.shape}{origin}"
            )
