"""The server's trainer: it learns from the activations of many clients, each behind its mask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adasplit_flwr.batch_checks import (
    blamed_on,
    check_activations,
    check_gradients,
    check_labels,
    finite_loss,
)
from adasplit_flwr.flat_parameters import FlatParameters
from adasplit_flwr.mask_store import DEFAULT_BUDGET_BYTES, MaskStore
from adasplit_flwr.masked_adam import AdamSettings, MaskedAdam
from adasplit_flwr.server_masks import check_masks, fresh_mask, mask_density
from adasplit_flwr.server_part import ServerPart
from adasplit_flwr.server_state import check_state, pack, table_in
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

DEFAULT_ADAM = AdamSettings()


@dataclass(frozen=True)
class BatchOutcome:
    """What the server learned from a batch.

    Parameters
    ----------
    loss : float
        Mean cross-entropy of the batch before the step, without the masks' penalty.
    correct : int
        How many of the samples were classified rightly before the step.
    gradient : Tensor or None
        Of that cross-entropy with respect to the activations, in their shape, if it was asked for.
    """

    loss: float
    correct: int
    gradient: torch.Tensor | None


def store_for(
    model: nn.Module,
    *,
    seed: int = 0,
    folder: Path | None = None,
    memory_budget_bytes: int = DEFAULT_BUDGET_BYTES,
) -> MaskStore:
    """Make a store for masks over a server part.

    Parameters
    ----------
    model : nn.Module
        The server part.
    seed : int
        Seed of the masks with which clients start.
    folder, memory_budget_bytes
        As :class:`MaskStore`.

    Raises
    ------
    SettingsError
        If the model cannot be masked, or the budget has no room for one mask.
    """
    weights = FlatParameters(model)
    length, dtype = weights.length, weights.dtype
    return MaskStore(
        length,
        dtype,
        make=partial(fresh_mask, length=length, dtype=dtype, seed=seed),
        folder=folder,
        memory_budget_bytes=memory_budget_bytes,
    )


class MaskedServer:
    """The server part W of a cut network, trained behind the clients' masks.

    AdaSplit, arXiv 2112.01637. Each client i has a real-valued mask m_i over all trainable
    parameters of the server part. Its batch passes ``W * sigmoid(m_i)`` (soft) or ``W * [m_i > 0]``
    (hard), and takes one Adam step on W and m_i of::

        cross-entropy + mask_penalty * sum(sigmoid(m_i))

    Other clients' masks stay. A hard mask's gradient is taken as if it were soft; what it leaves
    out of W stays bit for bit, with its Adam moments. W has one count of steps, each mask its own.
    A method that takes a client raises SettingsError if it is no whole number from 0, and DataError
    if the store cannot read or write its mask.

    Parameters
    ----------
    model : nn.Module
        The server part, on the CPU, float32 or float64, with logits of shape (n, classes). It is
        copied. Parameters that do not require a gradient are neither masked nor trained. Dropout
        draws from torch's global generator.
    store : MaskStore or None
        Where the masks are, as :func:`store_for` makes it; None: all in memory.
    masks : {"soft", "hard", "none"}
        What masks do. With none there is no store, and W trains as by ``torch.optim.Adam``.
    mask_penalty : float
        Weight of the L1 norm of the active client's mask; without masks it does nothing.
    optimizer : AdamSettings
        Of W and masks alike.
    seed : int
        Of the clients' first masks, if the store is None.

    Raises
    ------
    SettingsError
        If a setting cannot work, the model cannot be masked, or the store is for another one.

    Examples
    --------
    >>> server = MaskedServer(nn.Linear(2, 2), None)
    >>> outcome = server.train_batch(3, torch.ones(4, 2), torch.tensor([0, 1, 1, 1]))
    >>> server.clients()
    [3]
    """

    def __init__(
        self,
        model: nn.Module,
        store: MaskStore | None,
        *,
        masks: str = "soft",
        mask_penalty: float = 1e-3,
        optimizer: AdamSettings = DEFAULT_ADAM,
        seed: int = 0,
    ) -> None:
        self.masks = check_masks(masks)
        if not (math.isfinite(mask_penalty) and mask_penalty >= 0):
            raise SettingsError(f"mask_penalty is {mask_penalty}; it must not be negative")
        self._part = ServerPart(model, masks)
        self._weights = self._part.weights
        self._store: MaskStore | None = None
        if masks != "none":
            self._store = store or store_for(model, seed=seed)
            self._store.check_fits(self._weights.length, self._weights.dtype)
        elif store is not None:
            raise SettingsError("masks is none, so there is nothing for a store of masks to hold")
        self._adam = MaskedAdam(self._weights, optimizer, masks=masks, mask_penalty=mask_penalty)
        self._masked_for: int | None = None  # whose effective weights the part has at hand

    @property
    def learning_rate(self) -> float:
        """Adam's step size, of W and masks; may be set, to a number that is not negative."""
        return self._adam.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise SettingsError(f"learning_rate is {value}; it must not be negative")
        self._adam.learning_rate = value

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the masked parameters, in the order in which a mask holds them."""
        return dict(self._weights.shapes)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and of the activations that it takes."""
        return self._weights.dtype

    def shared_state(self) -> dict[str, Array]:
        """Copy W and the buffers: the server part's state_dict before any mask."""
        return self._part.shared_state()

    def clients(self) -> list[int]:
        """Return the clients that have a mask which a batch of theirs trained, ascending."""
        return self._store.clients() if self._store else []

    def has_learned_from(self, client: int) -> bool:
        """Say whether a client's mask was trained; without masks, whether anything was."""
        return client in self.clients() if self._store else self._adam.steps > 0

    def train_batch(
        self,
        client: int,
        activations: torch.Tensor,
        labels: torch.Tensor,
        *,
        input_gradient: bool = False,
    ) -> BatchOutcome:
        """Learn from one client's batch.

        Parameters
        ----------
        client : int
            Partition id, from 0; its mask is made when it comes first.
        activations : Tensor, shape (n, ...)
            What the client's part gave, in the dtype of the server part.
        labels : Tensor of integers, shape (n,)
            Classes from 0.
        input_gradient : bool
            Whether to give back the gradient with respect to the activations.

        Raises
        ------
        ClientFailedError
            Naming the client, if the server part does not take the batch, or its loss or gradient
            is not finite (or too large to be squared). Then nothing of the server has changed.
        """
        inputs = activations.detach()
        with torch.enable_grad(), self._part.buffers_restored_on_error():
            record = self._store.record(client) if self._store else None
            self._put_on(client)
            with blamed_on(client):
                check_activations(inputs, self._weights.dtype)
                check_labels(labels, inputs)
                inputs.requires_grad_(input_gradient)
                # A copy: the first layer may work in place, and the activations are the caller's.
                logits = self._part(inputs.clone(), training=True)
                loss = nn.functional.cross_entropy(logits, labels.long())
            value = finite_loss(client, loss)
            gradients, input_gradients = self._part.gradients(
                loss, [inputs] if input_gradient else []
            )
            check_gradients(client, [*gradients, *input_gradients])
        self._masked_for = None
        self._adam.step(gradients, record)
        if self._store is not None:
            self._store.changed(client)
        return BatchOutcome(
            loss=value,
            correct=int((logits.argmax(dim=1) == labels).sum()),
            gradient=input_gradients[0] if input_gradient else None,
        )

    @torch.no_grad()
    def predict(self, client: int, activations: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of a client's activations (n, ...), in evaluation mode.

        A client that was never seen gets the mask that it would start with.

        Raises
        ------
        ClientFailedError
            Naming the client, if the server part does not take the activations.
        """
        self._put_on(client)
        with blamed_on(client):
            check_activations(activations, self._weights.dtype)
            return self._part(activations.clone(), training=False)

    @torch.no_grad()
    def submodel(self, client: int) -> dict[str, torch.Tensor]:
        """Return what a client needs to compute :meth:`predict` itself.

        Returns
        -------
        dict of str to Tensor
            The server part's state_dict with the client's effective weights, buffers included;
            copies. Loaded into a plain copy of the module it gives the same numbers, bit for bit.
        """
        self._put_on(client)
        return self._part.state_dict()

    def density(self, client: int) -> float:
        """Return how much of W a client's mask lets through, in [0, 1].

        The mean of sigmoid(m) for soft masks, the share kept for hard ones, 1.0 without masks.
        """
        return mask_density(self.masks, self._store.mask(client)) if self._store else 1.0

    def kept(self, client: int) -> torch.Tensor:
        """Return where a client's mask is positive, shape (P,), bool; all without masks."""
        if self._store is None:
            return torch.ones(self._weights.length, dtype=torch.bool)
        return self._store.mask(client) > 0

    def state_arrays(self) -> dict[str, Array]:
        """Return everything that the next batch depends on, besides the learning rate.

        Returns
        -------
        dict of str to ndarray
            ``masks``, their kind; ``steps``; ``weights/``, ``exp_avg/`` and ``exp_avg_sq/`` with
            each parameter's name; ``untrained/`` with the names of buffers and frozen parameters;
            ``masks/`` with the store's table. Copies. Call :meth:`committed` once they are on disk.

        Raises
        ------
        DataError
            If the store's file cannot be written.
        """
        table = self._store.commit() if self._store else {}
        return pack(self.masks, self._adam.steps, self._tensors(), table)

    def committed(self) -> None:
        """Take note that the last :meth:`state_arrays` are on disk; see :class:`MaskStore`."""
        if self._store is not None:
            self._store.committed()

    @torch.no_grad()
    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned, so that training goes on bit for bit.

        Raises
        ------
        SettingsError
            If the state is of another model, dtype or kind of masks.
        DataError
            If the store's file is missing or not the state's; see :meth:`MaskStore.restore`.
            Whatever is raised, nothing has changed.
        """
        tensors = self._tensors()
        check_state(state, tensors, self.masks)
        if self._store is not None:
            self._store.restore(table_in(state))
        for name, tensor in tensors.items():
            np.copyto(tensor.numpy(), state[name])
        self._adam.steps = int(state["steps"])
        self._masked_for = None

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the state's tensors themselves, by their names in the state."""
        groups = {
            "weights": dict(zip(self._weights.shapes, self._weights.tensors, strict=True)),
            "exp_avg": self._weights.shaped(self._adam.exp_avg),
            "exp_avg_sq": self._weights.shaped(self._adam.exp_avg_sq),
            "untrained": self._part.untrained_state(),
        }
        return {
            f"{group}/{name}": tensor
            for group, tensors in groups.items()
            for name, tensor in tensors.items()
        }

    def _put_on(self, client: int) -> None:
        if self._store is not None and client != self._masked_for:
            self._masked_for = None
            self._part.put_on(self._store.mask(client))
            self._masked_for = client
