"""SCAFFOLD as a Flower strategy: control variates correct the drift of clients' steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common import FitIns, NDArrays, Parameters, ndarrays_to_parameters
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy

from strategies.answers import member_of
from strategies.client_rounds import StatePlan
from strategies.dense_mean import mean_model
from strategies.dense_replies import check_count, read_arrays
from strategies.downlink import is_statistic
from strategies.lasting_fedavg import LastingFedAvg
from strategies.replies import Reply
from strategies.state import State, prefixed, unprefixed
from strategies.wrapped import check_finite
from zerofl_flwr.errors import PayloadError, RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import TensorSpec

CONTROL = "control_variates"
"""What the second part of a message is called in errors."""


class Scaffold(LastingFedAvg):
    """Stochastic controlled averaging, option II (Karimireddy et al., ICML 2020).

    A round of Algorithm 1 (arXiv 1910.06378), with x the model, c the server's control variate, and
    c_i that of client i, which it keeps; all control variates start at zero::

        client i, K steps from y = x:    y -= eta_l (g_i(y) - c_i + c)
                                         c_i' = c_i - c + (x - y) / (K eta_l)
        server, of the S that replied:   x += eta_g mean(y - x)
                                         c += |S| / N mean(c_i' - c_i)

    Each client counts once, whatever its samples. With one client, or where all control variates
    are zero and all clients have as many samples, a round is FedAvg's.

    Parameters
    ----------
    num_clients : int
        N, how many clients there are in all. More than these must not reply.
    server_learning_rate : float
        eta_g.
    run : str
        Name of the run, under which clients keep their control variate.
    array_names : sequence of str, optional
        ``list(model.state_dict())``; with them BatchNorm's statistics take the plain mean also
        where `server_learning_rate` is not 1.
    **options
        Those of Flower's FedAvg.

    Attributes
    ----------
    control : list of ndarray
        c, one array for each float array of the model, in its dtype; empty before the first round.

    Raises
    ------
    SettingsError
        If an option cannot work, or is none of FedAvg's.

    Notes
    -----
    Clients must be :class:`simulations.baselines.ScaffoldClient`. The message holds the model and
    behind it c; the reply y, and behind it ``c_i' - c_i``: twice FedAvg's bytes in both directions.

    A client goes on from the last round whose reply passed. For one that has lost its control
    variate, c would no longer be the mean of those of all clients, and the run would end elsewhere:
    so all control variates start at zero again, with a warning. That needs failures that name their
    client, as those under :class:`strategies.Baseline` do.

    Examples
    --------
    >>> Scaffold(num_clients=100, fraction_fit=0.1)
    Scaffold(num_clients=100, server_learning_rate=1.0)
    """

    def __init__(
        self,
        *,
        num_clients: int,
        server_learning_rate: float = 1.0,
        run: str = "run",
        array_names: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(run=run, array_names=array_names, **options)
        if type(num_clients) is not int or num_clients < 1:
            raise SettingsError(f"num_clients is {num_clients!r}; it must be a whole number from 1")
        if not 0 < server_learning_rate < math.inf:
            raise SettingsError(
                f"server_learning_rate is {server_learning_rate}; it must be a positive number"
            )
        self.num_clients = num_clients
        self.server_learning_rate = server_learning_rate
        self.control: list[Array] = []

    def __repr__(self) -> str:
        """Name the settings that matter most."""
        return (
            f"Scaffold(num_clients={self.num_clients}, "
            f"server_learning_rate={self.server_learning_rate})"
        )

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Choose clients as FedAvg does; send them model, control variate, and their plans.

        Raises
        ------
        SettingsError
            If the control variates of a checkpoint are those of another model.
        """
        pairs = super().configure_fit(server_round, parameters, client_manager)
        self.rounds.begin()
        self._begin_control()
        control = ndarrays_to_parameters(self.control).tensors
        whole = Parameters([*parameters.tensors, *control], parameters.tensor_type)
        messages: dict[StatePlan, FitIns] = {}
        outgoing: list[tuple[ClientProxy, FitIns]] = []
        for client, wanted in pairs:
            plan = self.rounds.ask(member_of(client).partition_id, server_round)
            if plan not in messages:
                messages[plan] = FitIns(whole, {**wanted.config, **plan.to_config()})
            outgoing.append((client, messages[plan]))
        return outgoing

    def check_reply(self, server_round: int, reply: Reply) -> None:
        """Refuse what is no finite model of this round with a change of a control variate."""
        super().check_reply(server_round, reply)
        sender, result = str(reply.member), reply.result
        if len(result.parameters.tensors) == len(self.model.arrays):
            reason = "the reply holds a model and no change of a control variate"
            raise PayloadError(reason, sender=sender, field=CONTROL)
        count = len(self.model.arrays) + len(self.control)
        check_count(result.parameters.tensors, count, sender)
        self._trained(reply)
        self._change(reply)

    def combine(self, server_round: int, good: Sequence[Reply]) -> NDArrays:
        """Make the new model and the new control variate; see the class.

        Raises
        ------
        RoundFailedError
            If one of them would not be finite, or more clients have replied than there are.
        """
        new = {reply.member.partition_id for reply in good}
        everybody = len(self.rounds) + sum(client not in self.rounds for client in new)
        if everybody > self.num_clients:
            raise RoundFailedError(
                f"round {server_round}: {everybody} clients have replied so far, but num_clients "
                f"is {self.num_clients}"
            )
        origin = f"round {server_round}: the model that Scaffold made"
        count, model = len(good), self.model
        mean = mean_model(model.arrays, ((self._trained(reply), 1) for reply in good), count)
        arrays = self._stepped(mean)
        check_finite(arrays, model.names, origin)
        change = mean_model(self.control, ((self._change(reply), 1) for reply in good), count)
        share = count / self.num_clients
        with np.errstate(over="ignore", invalid="ignore"):
            control = [
                np.asarray(c + share * d, c.dtype)
                for c, d in zip(self.control, change, strict=True)
            ]
        check_finite(control, self._control_names, f"round {server_round}: the control variate")
        self.control = control
        for client in new:
            self.rounds.trained(client, server_round)
        return arrays

    def begin_again(self, server_round: int, client: int) -> None:
        """Begin all control variates again, as a client has lost its own."""
        log(
            WARNING,
            "round %d: client %d has lost its control variate: those of all clients, and the "
            "server's, start at zero again",
            server_round,
            client,
        )
        self.rounds.forget_all()
        self.control = [np.zeros_like(array) for array in self.control]

    def state_arrays(self) -> State:
        """Return the server's control variate, and which round each client's is of."""
        control = {f"{position:05d}": array for position, array in enumerate(self.control)}
        return {
            **prefixed("control", control),
            **prefixed("clients", self.rounds.state_arrays()),
        }

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_arrays` returned.

        Raises
        ------
        SettingsError
            If it is another strategy's.
        """
        if unknown := {name.partition("/")[0] for name in state} - {"control", "clients"}:
            raise SettingsError(f"this is no state of Scaffold: it holds {', '.join(unknown)}")
        self.rounds.load_state_arrays(unprefixed("clients", state))
        control = unprefixed("control", state)
        self.control = [control[name] for name in sorted(control)]

    def _begin_control(self) -> None:
        expected = [self.model.specs[position] for position in controlled(self.model.specs)]
        if not self.control:
            self.control = [np.zeros(spec.shape, spec.dtype) for spec in expected]
        if [TensorSpec(array.shape, array.dtype) for array in self.control] != expected:
            raise SettingsError("the control variates that Scaffold holds are of another model")

    @property
    def _control_names(self) -> list[str]:
        return [self.model.names[position] for position in controlled(self.model.specs)]

    def _trained(self, reply: Reply) -> list[Array]:
        model = self.model
        tensors = reply.result.parameters.tensors[: len(model.arrays)]
        return read_arrays(tensors, model.specs, model.names, str(reply.member))

    def _change(self, reply: Reply) -> list[Array]:
        specs = [TensorSpec(array.shape, array.dtype) for array in self.control]
        tensors = reply.result.parameters.tensors[len(self.model.arrays) :]
        return read_arrays(tensors, specs, self._control_names, str(reply.member), field=CONTROL)

    def _stepped(self, mean: list[Array]) -> list[Array]:
        """Go from the model towards the mean, as far as the server's learning rate says."""
        rate = self.server_learning_rate
        if rate == 1:
            return mean  # the same, without rounding
        arrays = list(mean)
        for position in controlled(self.model.specs):
            before = self.model.arrays[position]
            if not is_statistic(self.model.names[position]):
                with np.errstate(over="ignore", invalid="ignore"):
                    step = before + rate * (mean[position] - before)
                arrays[position] = np.asarray(step, before.dtype)
        return arrays


def controlled(specs: Sequence[TensorSpec]) -> list[int]:
    """Return the positions of the arrays that have a control variate: those of floats."""
    return [p for p, spec in enumerate(specs) if np.issubdtype(spec.dtype, np.floating)]
