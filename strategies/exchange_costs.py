"""What an exchange of AdaSplit costs, before it happens: the bytes of both messages, and the work.

The messages are built as in a run, with zeros that take no memory, and measured by the same meter.
So the bytes are exactly those of a run where activations and gradients travel densely, and bound
them where they travel as CSR. Multiply-adds are exact: samples times what a step costs one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.common import FitIns
from numpy.typing import NDArray

from adasplit_flwr.activation_payload import blank_activations
from adasplit_flwr.costs import SplitStepCosts, split_step_costs
from adasplit_flwr.dry_run import try_client
from adasplit_flwr.gradient_payload import blank_gradients
from adasplit_flwr.plans import FRESH
from adasplit_flwr.reply_metrics import exchange_metrics
from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel
from adasplit_flwr.weights_payload import CLIENT, HEAD, encode_weights, named_arrays
from strategies.adasplit_downlink import exchange_plan
from strategies.blank_messages import blank_parameters, blank_reply, break_down_blank
from strategies.traffic import Breakdown
from zerofl_flwr.memory import MEMORY
from zerofl_flwr.model_arrays import Array

_KNOWN = 4096  # costs that are kept; most are asked for again in the same round


@dataclass(frozen=True)
class ForetoldExchange:
    """One client's exchange, or the end of some, as far as its costs depend on it.

    Parameters
    ----------
    server_round : int
        From 1.
    sizes : tuple of int
        Samples of each batch that it takes; none: a finishing message.
    upload : bool
        Whether activations and labels come up.
    shares : bool
        Whether the client part and head come up.
    begins : bool
        Whether the client part and head go down.
    returned : tuple of int
        Samples of each batch whose gradient goes down.
    state_round : int
        The round that the client trained in last; 0: none.
    """

    server_round: int
    sizes: tuple[int, ...]
    upload: bool = False
    shares: bool = False
    begins: bool = False
    returned: tuple[int, ...] = ()
    state_round: int = FRESH


@dataclass(frozen=True)
class Costs:
    """What of a budget something takes.

    Parameters
    ----------
    bytes : int
        Of messages, down and up.
    client_ops, server_ops : int
        Multiply-adds, with the backward passes.
    """

    bytes: int = 0
    client_ops: int = 0
    server_ops: int = 0

    def __add__(self, other: Costs) -> Costs:
        """Add up two."""
        return Costs(
            self.bytes + other.bytes,
            self.client_ops + other.client_ops,
            self.server_ops + other.server_ops,
        )

    def __sub__(self, other: Costs) -> Costs:
        """Take one off."""
        return self + Costs(-other.bytes, -other.client_ops, -other.server_ops)

    @property
    def ops(self) -> int:
        """Multiply-adds of client and server together."""
        return self.client_ops + self.server_ops


class ExchangeCosts:
    """Foretells what exchanges of a run cost (AdaSplit, arXiv 2112.01637).

    Parameters
    ----------
    split : SplitModel
        The cut network.
    settings : AdaSplitSettings
        The method's.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    num_classes : int
        On which the type of a label on the wire depends.
    run : str
        Name of the run, which every message has.

    Attributes
    ----------
    steps : SplitStepCosts
        What a step costs a sample.

    Raises
    ------
    SettingsError
        If the shape is none, or a part fails on it.
    """

    def __init__(
        self,
        split: SplitModel,
        settings: AdaSplitSettings,
        sample_shape: tuple[int, ...],
        num_classes: int,
        run: str,
    ) -> None:
        self.steps: SplitStepCosts = split_step_costs(split, sample_shape, settings)
        self._settings = settings
        self._activation = tuple(try_client(split.client, sample_shape).shape[1:])
        self._num_classes = num_classes
        self._run = run
        self._weights: dict[str, Array] = named_arrays({CLIENT: split.client, HEAD: split.head})
        self._known: dict[ForetoldExchange, Costs] = {}

    def of(self, exchange: ForetoldExchange) -> Costs:
        """Return what an exchange costs altogether."""
        if len(self._known) >= _KNOWN:
            self._known.clear()
        if exchange not in self._known:
            size = sum(map(_total, (self.downlink(exchange), self.uplink(exchange))))
            self._known[exchange] = Costs(
                size, self.client_ops(exchange), self.server_ops(exchange)
            )
        return self._known[exchange]

    def client_ops(self, exchange: ForetoldExchange) -> int:
        """Return the client's multiply-adds: its own steps, and those with gradients that come."""
        own, again = sum(exchange.sizes), sum(exchange.returned)
        return own * self.steps.own.total + again * self.steps.again.total

    def server_ops(self, exchange: ForetoldExchange) -> int:
        """Return the server's multiply-adds for what comes up."""
        return sum(exchange.sizes) * self.steps.server.total if exchange.upload else 0

    def downlink(self, exchange: ForetoldExchange) -> Breakdown:
        """Return the bytes of the message to the client, by what they are."""
        server_round = exchange.server_round
        weights = self._weight_arrays(server_round) if exchange.begins else []
        gradients: list[NDArray[Any]] = []
        if exchange.returned:
            gradients = blank_gradients(
                exchange.returned, self._activation, server_round=server_round
            )
        plan = exchange_plan(
            self._settings,
            self._run,
            server_round,
            exchange.state_round,
            learning_rate=0.0,
            upload=exchange.upload,
            shares=exchange.shares,
            finishes=not exchange.sizes,
            weight_arrays=len(weights),
            gradient_arrays=len(gradients),
        )
        message = FitIns(blank_parameters([*weights, *gradients]), {**plan.to_config()})
        return break_down_blank(message, gradients=gradients[1:2], weights=weights[1:])

    def uplink(self, exchange: ForetoldExchange) -> Breakdown:
        """Return the bytes of the reply, by what they are, if activations travel densely.

        Where they travel as CSR it is smaller. A client whose system does not tell its memory says
        so much less.
        """
        server_round, sizes = exchange.server_round, exchange.sizes
        activations: list[NDArray[Any]] = []
        if exchange.upload:
            activations = blank_activations(
                sizes,
                self._activation,
                server_round=server_round,
                num_classes=self._num_classes,
                precision=self._settings.precision,
            )
        weights = self._weight_arrays(server_round) if exchange.shares else []
        metrics = exchange_metrics(
            loss=0.0,
            seconds=0.0,
            memory={MEMORY: 0.0},
            iterations=len(sizes),
            activation_arrays=len(activations),
            server_round=server_round,
        )
        reply = blank_reply([*activations, *weights], sum(sizes), metrics)
        return break_down_blank(
            reply, activations=activations[1:2], labels=activations[2:3], weights=weights[1:]
        )

    def _weight_arrays(self, server_round: int) -> list[Array]:
        return encode_weights(self._weights, server_round=server_round)


def _total(breakdown: Breakdown) -> int:
    return sum(breakdown.by_category().values())
