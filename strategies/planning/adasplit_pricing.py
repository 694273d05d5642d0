"""What the clients of one AdaSplit round cost, each by the size of its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.exchange_costs import ExchangeCosts, ForetoldExchange
from strategies.planning.adasplit_rounds import Round
from strategies.planning.exchanges import Exchanges, Taken
from strategies.planning.vectors import Row, number_size, row_of
from strategies.traffic import NO_BYTES, Breakdown

_NOTHING = Taken()


@dataclass(frozen=True)
class Rows:
    """Costs of a round, a row for each client that may be in it.

    Parameters
    ----------
    base : NDArray of int64, shape (clients, columns)
        Of a client that uploads no activations, and is sent no gradients.
    upload, returned : NDArray of int64, same shape
        What activations, or gradients, add to that.
    """

    base: NDArray[np.int64]
    upload: NDArray[np.int64]
    returned: NDArray[np.int64]


class Pricing:
    """Prices rounds; what was priced once is known.

    A message's size depends on its round by that number's length alone, so that rounds whose
    numbers are as long share their prices.

    Parameters
    ----------
    costs : ExchangeCosts
        Of single exchanges.
    clients : sequence of Exchanges
        Each client's, in partition order.
    """

    def __init__(self, costs: ExchangeCosts, clients: Sequence[Exchanges]) -> None:
        self._costs = costs
        self._clients = clients
        self._period = math.lcm(*(client.period for client in clients))
        self._rows: dict[tuple[object, ...], Rows] = {}
        self._downs: dict[tuple[object, ...], Breakdown] = {}
        self._ups: dict[tuple[object, ...], Breakdown] = {}

    def key(self, of: Round) -> tuple[object, ...]:
        """Return what a round's prices depend on."""
        return (
            number_size(of.server_round),
            number_size(of.state_round),
            of.finishes,
            of.begins,
            of.shares,
            of.client,
            None if of.number is None else of.number % self._period,
            bool(of.uploads),
            bool(of.returned),
        )

    def rows(self, of: Round) -> Rows:
        """Return the rows of a round's clients: of all, or of the one whose turn it is."""
        key = self.key(of)
        if key not in self._rows:
            chosen = self._clients if of.client is None else [self._clients[of.client]]
            rows = [self._of_client(of, client) for client in chosen]
            base, upload, returned = (np.stack(part) for part in zip(*rows, strict=True))
            self._rows[key] = Rows(base, upload, returned)
        return self._rows[key]

    def part(self, of: Round) -> Row:
        """Return what the client part adds to the message that takes it along in a round."""
        return row_of(_difference(self._down(of, begins=True), self._down(of)), NO_BYTES)

    def _of_client(self, of: Round, client: Exchanges) -> tuple[Row, Row, Row]:
        taken, least = (
            (client.most, client.least) if of.number is None else (client.take(of.number),) * 2
        )
        if of.finishes:
            taken = least = _NOTHING
        steps = self._costs.steps
        down = self._down(of, begins=of.begins)
        up = self._up(of.server_round, taken, uploads=False, shares=of.shares)
        base = row_of(
            down,
            up,
            trained=taken.samples,
            client_forward_ops=taken.samples * steps.own.forward,
            client_ops=taken.samples * steps.own.total,
            least_steps=-least.batches,
        )
        upload = returned = np.zeros_like(base)
        if of.uploads:
            upload = row_of(
                NO_BYTES,
                _difference(self._up(of.server_round, taken, uploads=True, shares=of.shares), up),
                learned=taken.samples,
                uploads=1,
                server_forward_ops=taken.samples * steps.server.forward,
                server_ops=taken.samples * steps.server.total,
                least_learned=-least.samples,
            )
        if of.returned:
            before = client.most if of.number is None else client.take(of.number - 1)
            returned = row_of(
                _difference(self._down(of, returned=before), self._down(of)),
                NO_BYTES,
                returned=before.samples,
                client_forward_ops=before.samples * steps.again.forward,
                client_ops=before.samples * steps.again.total,
            )
        return base, upload, returned

    def _down(self, of: Round, *, begins: bool = False, returned: Taken = _NOTHING) -> Breakdown:
        key = (
            number_size(of.server_round),
            number_size(of.state_round),
            of.finishes,
            begins,
            returned,
        )
        if key not in self._downs:
            self._downs[key] = self._costs.downlink(
                ForetoldExchange(
                    of.server_round,
                    () if of.finishes else (1,),  # how much it takes is not in this message
                    shares=of.finishes,
                    begins=begins,
                    returned=returned.sizes,
                    state_round=of.state_round,
                )
            )
        return self._downs[key]

    def _up(self, server_round: int, taken: Taken, *, uploads: bool, shares: bool) -> Breakdown:
        key = (number_size(server_round), taken, uploads, shares)
        if key not in self._ups:
            self._ups[key] = self._costs.uplink(
                ForetoldExchange(server_round, taken.sizes, upload=uploads, shares=shares)
            )
        return self._ups[key]


def _difference(whole: Breakdown, part: Breakdown) -> Breakdown:
    names = (*whole.by_category(), "counted")
    return Breakdown(**{name: getattr(whole, name) - getattr(part, name) for name in names})
