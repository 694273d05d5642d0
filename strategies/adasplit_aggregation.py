"""From a round's replies to what AdaSplit's server has learned from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from logging import WARNING

from flwr.common import FitRes
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy

from adasplit_flwr.client_resume import lost_state
from adasplit_flwr.plans import FRESH, ExchangePlan
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_clients import KnownClients
from strategies.adasplit_downlink import Asked
from strategies.adasplit_replies import CutShapes, Exchange, ExchangeChecker
from strategies.adasplit_report import AdaSplitRoundReport, round_report
from strategies.adasplit_server import Lessons, ServerTrainer
from strategies.adasplit_turns import Turn, Turns
from strategies.adasplit_weights import ClientWeights
from strategies.answers import Refusal, name_missing, sort_replies
from zerofl_flwr.errors import RoundFailedError


class ExchangeAggregation:
    """Checks a round's replies, shares client parts, and lets the server learn, in this order.

    Parameters
    ----------
    settings : AdaSplitSettings
        The method's.
    shapes : CutShapes
        Of the activations.
    weights : ClientWeights
        Updated where clients share theirs.
    clients : KnownClients
        Told who trained, and who has to begin again.
    turns : Turns
        Its relay and its sharing are told who delivered, and its ledger what that took.
    trainer : ServerTrainer
        Learns from the uploads.
    """

    def __init__(
        self,
        settings: AdaSplitSettings,
        shapes: CutShapes,
        weights: ClientWeights,
        clients: KnownClients,
        turns: Turns,
        trainer: ServerTrainer,
    ) -> None:
        self._settings = settings
        self._shapes = shapes
        self._weights = weights
        self._clients = clients
        self._turns = turns
        self._relay, self._sharing = turns.relay, turns.sharing
        self._trainer = trainer

    def run(
        self,
        server_round: int,
        turn: Turn,
        asked: Asked[ExchangePlan],
        results: Sequence[tuple[ClientProxy, FitRes]],
        failures: Sequence[tuple[ClientProxy, FitRes] | BaseException],
    ) -> AdaSplitRoundReport:
        """Take a round's replies.

        Parameters
        ----------
        server_round : int
            From 1.
        turn : Turn
            Who trained, and who was picked.
        asked : Asked
            Who was sent which plan.
        results, failures
            As Flower hands them over.

        Raises
        ------
        RoundFailedError
            If no client delivered and none can begin again, if any failed under
            ``on_failure="raise"``, or if the shared client parts are not finite. Where replies are
            at fault, nothing has been learned.
        """
        replies, refusals = sort_replies(results, failures)
        ledger = self._turns.ledger
        most_samples = None if ledger is None else ledger.needs.samples
        checker = ExchangeChecker(asked, self._shapes, self._weights, most_samples)
        good, refused = checker.split(replies)
        answers = [exchange.answer for exchange in good]
        refusals = name_missing(asked.members, answers, [*refusals, *refused])
        restarts = self._begin_again(server_round, asked, refusals)
        self._sharing.took(
            {exchange.client: exchange.answer.result.num_examples for exchange in good},
            finished=turn.finishes,
            shared=turn.shares,
            picks=list(turn.picks),
        )
        self._judge(server_round, turn, good, refusals, restarts)
        if turn.shares and good:
            self._share(server_round, good)
        lessons = self._learn(server_round, turn, good)
        returned = self._returned(asked, good)
        for exchange in good:
            lesson = lessons.get(exchange.client, Lessons())
            self._clients.trained(exchange.client, server_round, lesson.gradients)
        if self._sharing.is_over:
            self._clients.forget_gradients()
            self._sharing.begin()
        report = round_report(
            server_round, turn, good, refusals, asked.meter, lessons, self._trainer, returned
        )
        if ledger is not None:
            ledger.charge(turn.work, asked.meter.traffic(), report.clients)
        return replace(report, restarts=restarts)

    def _returned(self, asked: Asked[ExchangePlan], good: Sequence[Exchange]) -> dict[int, int]:
        """Count the samples whose gradients went along with the clients' messages."""
        return {
            exchange.client: sum(
                len(gradient) for _, gradient in self._clients.gradients(exchange.client)
            )
            for exchange in good
            if asked.plans[exchange.client].gradient_arrays
        }

    def _judge(
        self,
        server_round: int,
        turn: Turn,
        good: Sequence[Exchange],
        refusals: Sequence[Refusal],
        restarts: int,
    ) -> None:
        reasons = self._tell(server_round, [refusal.reason for refusal in refusals])
        works = bool(good or restarts)  # who begins again may deliver next time
        nobody = not works
        if self._settings.client_weights == "relayed":
            # The next in turn goes on from whoever was last, unless nobody is left to go on.
            if is_over := self._sharing.is_over:
                self._relay.misses = 0 if works else self._relay.misses + 1
            nobody = nobody and is_over and self._relay.nobody_works
        if nobody:
            raise RoundFailedError(f"round {server_round}: no client delivered. {reasons}")
        if turn.picks and turn.picks.isdisjoint(exchange.client for exchange in good):
            log(
                WARNING,
                "round %d: no picked client delivered, the server learns nothing",
                server_round,
            )

    def _begin_again(
        self, server_round: int, asked: Asked[ExchangePlan], refusals: Sequence[Refusal]
    ) -> int:
        """Let clients whose state is lost start afresh next time; return how many these are."""
        restarts = 0
        for refusal in refusals:
            client = refusal.partition_id
            plan = None if client is None else asked.plans.get(client)
            if client is None or plan is None or plan.state_round == FRESH:
                continue
            if lost_state(client, plan.run, plan.state_round) in refusal.reason:
                self._clients.lost(client)
                self._sharing.lost(client)
                restarts += 1
                log(
                    WARNING,
                    "round %d: client %d has lost its part of the network, and begins again from "
                    "the common start when it next trains",
                    server_round,
                    client,
                )
        return restarts

    def _share(self, server_round: int, good: Sequence[Exchange]) -> None:
        if self._settings.client_weights == "relayed":
            self._weights.take(good[0].weights)
            return
        samples = self._sharing.samples
        replies = [(exchange.weights, samples[exchange.client]) for exchange in good]
        self._weights.average(replies, server_round)

    def _learn(self, server_round: int, turn: Turn, good: Sequence[Exchange]) -> dict[int, Lessons]:
        relayed = self._settings.client_weights == "relayed"
        lessons = self._trainer.learn(
            {exchange.client: exchange.batches for exchange in good if exchange.batches},
            turn.picks,
            is_entry=not relayed or (self._sharing.is_over and self._relay.pass_is_over),
        )
        failures = [lesson.failure for lesson in lessons.values() if lesson.failure]
        reasons = self._tell(server_round, failures)
        nothing = bool(lessons) and not any(lesson.samples for lesson in lessons.values())
        if nothing and not relayed:
            raise RoundFailedError(
                f"round {server_round}: the server could learn from no upload. {reasons}"
            )
        return lessons

    def _tell(self, server_round: int, reasons: Sequence[str]) -> str:
        """Log failures, and end the run for them where that was asked for."""
        for reason in reasons:
            log(WARNING, "round %d: %s", server_round, reason)
        joined = "; ".join(reasons)
        if reasons and self._settings.on_failure == "raise":
            raise RoundFailedError(f"round {server_round}: {joined}")
        return joined
