"""What a whole AdaSplit run costs, told from its network, settings and the sizes of its data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel
from strategies.adasplit_options import Participation, check_options
from strategies.exchange_costs import ExchangeCosts
from strategies.planning.adasplit_pricing import Pricing
from strategies.planning.adasplit_rounds import (
    Round,
    picks_are_known,
    relayed_rounds,
    rounds_of_all,
)
from strategies.planning.bill import Bill, RunCosts
from strategies.planning.exchanges import drawn_clients, exchanges_of
from strategies.planning.vectors import PROMISED, Row, most


class AdaSplitCosts:
    """Foretells what AdaSplit runs on one cut network and one division of data cost.

    Parameters
    ----------
    split : SplitModel
        The cut network (arXiv 2112.01637).
    settings : AdaSplitSettings
        Its ``kappa`` and ``eta`` may be others in :meth:`of`.
    samples : sequence of int
        What each client trains on, in partition order.
    sample_shape : tuple of int
        Shape of a sample, without the batch.
    num_classes : int
        Of the labels.
    batch_size : int
        Of the clients' batches.
    full_batches : bool
        Whether clients leave out what does not fill a batch.
    clients_per_round : int, optional
        How many clients train in a round; default: all. Where the client part is relayed it is one.
    run : str
        Name of the run; its length counts.

    Raises
    ------
    SettingsError
        If a part of the network fails on such samples, there is no client, or one cannot train.
    """

    def __init__(
        self,
        split: SplitModel,
        settings: AdaSplitSettings,
        samples: Sequence[int],
        *,
        sample_shape: tuple[int, ...],
        num_classes: int,
        batch_size: int = 32,
        full_batches: bool = False,
        clients_per_round: int | None = None,
        run: str = "run",
    ) -> None:
        clients = exchanges_of(
            samples, batch_size, settings.iterations_per_round, full_batches=full_batches
        )
        costs = ExchangeCosts(
            split, settings, sample_shape=sample_shape, num_classes=num_classes, run=run
        )
        self.steps = costs.steps
        self._settings = settings
        self._pricing = Pricing(costs, clients)
        self._clients = len(clients)
        self._drawn = drawn_clients(clients_per_round, len(clients))

    def of(self, rounds: int, *, kappa: float | None = None, eta: float | None = None) -> RunCosts:
        """Foretell a run of so many rounds.

        Parameters
        ----------
        rounds : int
            Of the run; a finishing round counts as one.
        kappa, eta : float, optional
            Instead of the settings'.

        Raises
        ------
        SettingsError
            If there is no round, or fewer than the settings need.
        """
        settings = replace(
            self._settings,
            kappa=self._settings.kappa if kappa is None else kappa,
            eta=self._settings.eta if eta is None else eta,
        )
        check_options(settings, Participation(rounds, 1.0, 1, 1, 1, 0.0), "run")
        if settings.client_weights == "relayed":
            return self._relayed(settings, rounds)
        plan = list(rounds_of_all(settings, rounds, self._clients, self._drawn))
        bill = Bill(self._clients)
        self._add(bill, plan, self._drawn)
        if self._drawn < self._clients:
            bill.is_exact = False
            if not settings.shares_weights:
                part = self._pricing.part(plan[-1])
                bill.total += part * min(self._clients, self._drawn * rounds)
                bill.clients += part
        return bill.costs()

    def _relayed(self, settings: AdaSplitSettings, rounds: int) -> RunCosts:
        plan = list(relayed_rounds(settings, rounds, self._clients))
        bill = Bill(self._clients)
        if picks_are_known(settings, self._clients):
            self._add(bill, plan, 1)
        elif settings.returns_gradients:
            # When a turn ends depends on who is picked: each round may be the costliest of all.
            local = settings.local_rounds(rounds)
            self._add(bill, plan[:local], 1)
            self._add(bill, map(_costliest, plan[local:]), 1)
            bill.is_exact = False
            bill.total[PROMISED] = 0
        else:
            self._add(bill, [replace(of, uploads=0) for of in plan], 1)
            self._add_picks(bill, settings, plan)
        return bill.costs()

    def _add_picks(self, bill: Bill, settings: AdaSplitSettings, plan: Sequence[Round]) -> None:
        """Let as many upload in each pass through the clients as are picked, the costliest."""
        passes: dict[int, dict[int, Row]] = {}
        waiting: dict[int, int] = {}
        for of in plan:
            if not of.uploads or of.client is None:
                continue
            number, place = divmod(of.turn, self._clients)
            turns = passes.setdefault(number, {})
            waiting.setdefault(number, self._clients - place)
            row = self._pricing.rows(of).upload[0]
            turns[of.turn] = turns.get(of.turn, 0) + row
            bill.clients[of.client] += row
        for number, turns in passes.items():
            rows, picked = np.stack(list(turns.values())), settings.uploads(waiting[number])
            row, exact = most(rows, min(picked, len(rows)))
            surely, _ = most(rows, max(0, picked - (waiting[number] - len(rows))))
            bill.total += np.where(PROMISED, surely, row)
            bill.is_exact &= exact and len(rows) == waiting[number]

    def _add(self, bill: Bill, rounds: Iterable[Round], drawn: int) -> None:
        """Add rounds in which so many clients train."""
        known: dict[object, Round] = {}
        times: Counter[object] = Counter()
        for of in rounds:
            alike = (self._pricing.key(of), of.uploads, of.returned)
            known.setdefault(alike, of)
            times[alike] += 1
        for key, count in times.items():
            self._add_round(bill, known[key], drawn, count)

    def _add_round(self, bill: Bill, of: Round, drawn: int, times: int) -> None:
        rows = self._pricing.rows(of)
        for part, number in (
            (rows.base, drawn),
            (rows.upload, of.uploads),
            (rows.returned, of.returned),
        ):
            row, exact = most(part, number)
            bill.total += row * times
            bill.is_exact &= exact
            if number:
                clients = slice(None) if of.client is None else of.client
                bill.clients[clients] += (part if of.client is None else part[0]) * times


def _costliest(of: Round) -> Round:
    """Return a round in which any client may do all that there is to do."""
    return Round(
        of.server_round,
        of.server_round - 1,
        "global",
        begins=True,
        shares=True,
        uploads=1,
        returned=1,
    )
