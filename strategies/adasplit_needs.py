"""What clients of AdaSplit need for what comes next, before it happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from adasplit_flwr.batches import exchange_sizes
from adasplit_flwr.plans import FRESH
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_clients import KnownClients
from strategies.adasplit_sharing import Sharing
from strategies.exchange_costs import Costs, ExchangeCosts, ForetoldExchange
from zerofl_flwr.errors import SettingsError

NOTHING = Costs()


class Needs:
    """What a client's next exchange costs, together with what it leads to.

    It leads to server gradients that come with the next message, and, of a client part that is
    shared, to the rest of its period, without another upload of activations. Rounds to come are
    counted with the longest number that they may have.

    Parameters
    ----------
    costs : ExchangeCosts
        Of the run's exchanges.
    batch_sizes : mapping of int to sequence of int
        By partition id, the samples of each batch of an epoch.
    settings : AdaSplitSettings
        The method's.
    rounds : int
        Rounds of the run.
    clients : KnownClients
        Whose state is that of which round, and which gradients wait.
    sharing : Sharing
        The period of shared client parts.

    Attributes
    ----------
    taken : dict of int to int
        By partition id, the batches that a client has taken since it began.
    """

    def __init__(
        self,
        costs: ExchangeCosts,
        batch_sizes: Mapping[int, Sequence[int]],
        settings: AdaSplitSettings,
        rounds: int,
        clients: KnownClients,
        sharing: Sharing,
    ) -> None:
        self.costs = costs
        self.taken: dict[int, int] = {}
        self._epochs = {client: tuple(sizes) for client, sizes in batch_sizes.items()}
        self._settings = settings
        self._rounds = rounds
        self._clients = clients
        self._sharing = sharing

    def check_clients(self, clients: Iterable[int]) -> None:
        """Refuse clients whose exchanges nobody can foretell.

        Raises
        ------
        SettingsError
            Naming one of which no batch sizes are known.
        """
        if unknown := sorted(set(clients) - self._epochs.keys()):
            raise SettingsError(
                f"batch_sizes does not name client {unknown[0]}, so that a budget cannot hold it"
            )

    def committed(self, server_round: int) -> dict[int, Costs]:
        """Return what clients will need, by partition id, for what they have begun before a round.

        For personal parts these are the exchanges with the gradients that wait, for shared ones the
        rest of the period.
        """
        if not self._settings.shares_weights:
            return {
                client: self._later(client, 0, returned=self._waiting(client))
                for client in self._clients.waiting()
            }
        if self._sharing.finishes(server_round):
            return {
                client: self.costs.of(self.finish(client, server_round))
                for client in self._sharing.samples
            }
        return {
            client: self.need(client, server_round, upload=False)
            for client in self._sharing.members
        }

    def exchange(
        self, client: int, server_round: int, *, upload: bool, shares: bool = False
    ) -> ForetoldExchange:
        """Foretell a client's exchange in a round."""
        state_round = self._clients.state_round(client)
        begins = state_round == FRESH or client in self._sharing.begins([client])
        return ForetoldExchange(
            server_round,
            self._sizes(client, 0),
            upload=upload,
            shares=shares,
            begins=begins,
            returned=() if begins else self._waiting(client),
            state_round=state_round,
        )

    def need(self, client: int, server_round: int, *, upload: bool) -> Costs:
        """Return what a client needs for an exchange in a round, and what it leads to."""
        returned = self._sizes(client, 0) if upload and self._settings.returns_gradients else ()
        if not self._settings.shares_weights:
            now = self.costs.of(self.exchange(client, server_round, upload=upload))
            is_last = server_round == self._rounds
            return now if is_last or not returned else now + self._later(client, 1, returned)
        under_way = bool(returned) or self._sharing.has_gradients
        if under_way or not self._sharing.may_have_gradients(server_round):
            return self._period(client, server_round, upload, returned, under_way)
        # Another client's gradients may come under way, which changes how the period ends.
        return _larger(
            self._period(client, server_round, upload, returned, True),
            self._period(client, server_round, upload, returned, False),
        )

    def finish(self, client: int, server_round: int) -> ForetoldExchange:
        """Foretell a client's part in a finishing round."""
        return ForetoldExchange(
            server_round,
            (),
            shares=True,
            returned=self._waiting(client),
            state_round=self._clients.state_round(client),
        )

    def trains_without_upload(self, client: int) -> bool:
        """Say whether a client has a loss of its own, or gradients that wait for it."""
        return self._settings.local_loss or bool(self._clients.gradients(client))

    def samples(self, client: int) -> int:
        """Return how many samples a client's next exchange takes."""
        return sum(self._sizes(client, 0))

    def took(self, client: int) -> None:
        """Note that a client has taken an exchange's batches."""
        self.taken[client] = self.taken.get(client, 0) + len(self._sizes(client, 0))

    def missed(self, client: int) -> None:
        """Note that a client has delivered nothing; one that lost its state begins again."""
        if self._clients.state_round(client) == FRESH:
            self.taken.pop(client, None)

    def _sizes(self, client: int, ahead: int) -> tuple[int, ...]:
        """Foretell the batches of the exchange after so many others."""
        iterations = self._settings.iterations_per_round
        done = self.taken.get(client, 0) + ahead * (iterations or 0)
        return exchange_sizes(self._epochs[client], done, iterations)

    def _waiting(self, client: int) -> tuple[int, ...]:
        return tuple(len(gradient) for _, gradient in self._clients.gradients(client))

    def _period(
        self, client: int, server_round: int, upload: bool, returned: tuple[int, ...], wait: bool
    ) -> Costs:
        """Return the needs of an exchange and of the rest of the period, which ends one way."""
        left, finishes = self._sharing.ending(server_round, gradients=wait)
        shares = not (left or finishes)
        total = self.costs.of(self.exchange(client, server_round, upload=upload, shares=shares))
        for ahead in range(1, left + 1):
            is_end = ahead == left and not finishes
            came = returned if ahead == 1 else ()
            total += self._later(client, ahead, came, shares=is_end)
        if finishes:
            total += self._later(client, None, () if left else returned, shares=True)
        return total

    def _later(
        self,
        client: int,
        ahead: int | None,
        returned: tuple[int, ...],
        *,
        shares: bool = False,
    ) -> Costs:
        """Bound an exchange to come, without activations; None ahead: a finishing message."""
        exchange = ForetoldExchange(
            self._rounds,
            () if ahead is None else self._sizes(client, ahead),
            shares=shares,
            returned=returned,
            state_round=self._rounds - 1,
        )
        return self.costs.of(exchange)


def _larger(first: Costs, second: Costs) -> Costs:
    return Costs(
        max(first.bytes, second.bytes),
        max(first.client_ops, second.client_ops),
        max(first.server_ops, second.server_ops),
    )


def check_batch_sizes(batch_sizes: Mapping[int, Sequence[int]]) -> None:
    """Refuse what cannot be the batches of an epoch.

    Raises
    ------
    SettingsError
        Naming the client.
    """
    for client, sizes in batch_sizes.items():
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise SettingsError(
                f"batch_sizes of client {client} are {list(sizes)!r}; they must be whole numbers "
                "from 1, one for each batch of an epoch"
            )
