"""FedNova as a Flower strategy: clients' changes are divided by what their steps add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.common import FitIns, NDArrays, Parameters
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from strategies.answers import whole_metric
from strategies.checked_fedavg import CheckedFedAvg
from strategies.dense_replies import ROUND, check_model, check_round_told, read_arrays
from strategies.downlink import is_statistic
from strategies.replies import Reply
from strategies.state import State
from strategies.wrapped import check_finite, in_own_dtypes
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

MOMENTUM, LOCAL_STEPS = "momentum", "local_steps"
"""Config entry, and metric of a reply."""
_MOST_STEPS = 10**9


class FedNova(CheckedFedAvg):
    r"""Normalised averaging (Wang et al., NeurIPS 2020, arXiv 2007.07481).

    Clients that take more steps pull FedAvg towards their own optimum. Here a client's change is
    divided by ``||a_i||_1``, what its steps add up to, before it is averaged; and their mean is
    multiplied by the mean of these, so that a round moves as far as in FedAvg::

        x' = x + tau_eff * sum_i p_i (y_i - x) / ||a_i||_1,   tau_eff = sum_i p_i ||a_i||_1

    with p_i the share of a client's samples. ``||a_i||_1`` is the number of steps under plain SGD,
    and ``(tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)`` with momentum rho. For clients that
    all take as many steps it is FedAvg.

    Parameters
    ----------
    momentum : float
        Momentum of the clients' SGD; it goes out as the config entry ``momentum``.
    array_names : sequence of str, optional
        ``list(model.state_dict())``; with them BatchNorm's statistics take the plain mean.
    **options
        Those of Flower's FedAvg.

    Raises
    ------
    SettingsError
        If the momentum is not in [0, 1), or an option is none of FedAvg's.

    Notes
    -----
    A client trains with SGD from a fresh state, and its reply is its whole model with two metrics:
    ``local_steps``, how many steps it took, and ``round``, the config's entry of that name. Such is
    :class:`simulations.baselines.BaselineClient`. Integer arrays keep the server's value.

    Examples
    --------
    >>> FedNova(momentum=0.9, fraction_fit=0.5)
    FedNova(momentum=0.9)
    """

    def __init__(
        self,
        *,
        momentum: float = 0.0,
        array_names: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(array_names=array_names, **options)
        if not 0 <= momentum < 1:
            raise SettingsError(f"momentum is {momentum}; it must be in [0, 1)")
        self.momentum = momentum

    def __repr__(self) -> str:
        """Name the one setting."""
        return f"FedNova(momentum={self.momentum})"

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Choose clients as FedAvg does; tell them the round and the momentum."""
        pairs = super().configure_fit(server_round, parameters, client_manager)
        if not pairs:
            return []
        wanted = pairs[0][1]  # FedAvg sends the same to all
        told = {ROUND: server_round, MOMENTUM: self.momentum}
        message = FitIns(wanted.parameters, {**wanted.config, **told})
        return [(client, message) for client, _ in pairs]

    def check_reply(self, server_round: int, reply: Reply) -> None:
        """Refuse what is no finite model of this round with a number of steps."""
        sender = str(reply.member)
        check_round_told(reply.result.metrics, server_round, sender)
        whole_metric(reply.result.metrics, LOCAL_STEPS, sender, 1, _MOST_STEPS)
        check_model(reply, self.model.specs, self.model.names)

    def combine(self, server_round: int, good: Sequence[Reply]) -> NDArrays:
        """Make the new model; see the class."""
        total = sum(reply.result.num_examples for reply in good)
        shares = [reply.result.num_examples / total for reply in good]
        steps = [local_norm(_steps_of(reply), self.momentum) for reply in good]
        effective = sum(share * norm for share, norm in zip(shares, steps, strict=True))
        moves: list[Array] = [np.zeros(array.shape) for array in self.model.arrays]
        for reply, share, norm in zip(good, shares, steps, strict=True):
            self._add(moves, reply, share, share * effective / norm)
        specs = self.model.specs
        moved = [
            before + move if np.issubdtype(spec.dtype, np.floating) else before
            for before, move, spec in zip(self.model.arrays, moves, specs, strict=True)
        ]
        origin = f"round {server_round}: the model that FedNova made"
        arrays = in_own_dtypes([np.asarray(array) for array in moved], specs, origin)
        check_finite(arrays, self.model.names, origin)
        return arrays

    def state_arrays(self) -> State:
        """Return nothing: no round depends on another but through the model."""
        return {}

    def load_state_arrays(self, state: State) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is another strategy's.
        """
        if state:
            raise SettingsError(f"FedNova has no state; this one holds {', '.join(sorted(state))}")

    def _add(self, moves: list[Array], reply: Reply, share: float, weight: float) -> None:
        """Add one client's change, in double precision."""
        model = self.model
        arrays = read_arrays(
            reply.result.parameters.tensors, model.specs, model.names, str(reply.member)
        )
        for move, array, before, name in zip(moves, arrays, model.arrays, model.names, strict=True):
            if np.issubdtype(array.dtype, np.floating):
                change = array.astype(np.float64) - before
                move += (share if is_statistic(name) else weight) * change


def local_norm(steps: int, momentum: float) -> float:
    """Return ``||a_i||_1``: what the weights of a client's gradients in its change add up to.

    Parameters
    ----------
    steps : int
        Steps of SGD, from 1.
    momentum : float
        In [0, 1); without Nesterov or dampening, as torch's by default.
    """
    if momentum == 0:
        return float(steps)
    geometric = momentum * (1 - momentum**steps) / (1 - momentum)
    return (steps - geometric) / (1 - momentum)


def _steps_of(reply: Reply) -> int:
    return int(reply.result.metrics[LOCAL_STEPS])
