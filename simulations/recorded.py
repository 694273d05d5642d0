"""Around any strategy: rounds that count on after a resume, and a recorder that sees each."""

from __future__ import annotations

import time

from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from simulations.freed_memory import return_freed_memory
from simulations.recorder import Recorder
from strategies.state import check_resumable, load_strategy_state, strategy_state

# Returning memory costs the next round as many page faults: not worth it for less.
_RETURN_AFTER_BYTES = 64 * 10**6


class RecordedStrategy(Strategy):
    """Passes everything on; counts rounds from where a checkpoint stopped.

    Flower's server always counts from 1. Strategies depend on the round (learning rates, sampling,
    bias correction), so that a resumed run must give them the number of the unbroken one.

    Parameters
    ----------
    strategy : Strategy
        The strategy of the run.
    recorder : Recorder
        Where results and checkpoints go; holds the checkpoint to continue from, if any.
    """

    def __init__(self, strategy: Strategy, recorder: Recorder) -> None:
        super().__init__()
        check_resumable(strategy)
        self._strategy = strategy
        self._recorder = recorder
        self._first = recorder.rounds_done
        self._parameters: Parameters | None = None
        self._started = 0.0
        self._received_bytes = 0

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Give the checkpoint's model, or the strategy's initial one."""
        checkpoint = self._recorder.checkpoint
        parameters = self._strategy.initialize_parameters(client_manager)
        if checkpoint is None:
            return parameters
        load_strategy_state(self._strategy, checkpoint.state)
        return ndarrays_to_parameters(checkpoint.arrays)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Start the clock of a round; one in which nobody is asked to train ends here."""
        self._started = time.perf_counter()
        pairs = self._strategy.configure_fit(self._first + server_round, parameters, client_manager)
        if not pairs:
            self._recorder.timed(time.perf_counter() - self._started)
        return pairs

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Stop the clock of a round: evaluation is not part of it.

        Empties `results`: Flower's server keeps the list until the next round's has come, which
        would hold two rounds of replies in memory, and nobody reads it any more.
        """
        self._received_bytes += sum(
            len(tensor) for _, reply in results for tensor in reply.parameters.tensors
        )
        outcome = self._strategy.aggregate_fit(self._first + server_round, results, failures)
        self._recorder.timed(time.perf_counter() - self._started)
        results.clear()
        return outcome

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Test on the server; a resumed run has tested its first model before."""
        if server_round == 0 and self._first > 0:
            return None
        self._parameters = parameters
        outcome = self._strategy.evaluate(self._first + server_round, parameters)
        if outcome is not None:
            self._recorder.tested(self._first + server_round, outcome[0], outcome[1])
        return outcome

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Let clients evaluate; a round without that ends here."""
        pairs = self._strategy.configure_evaluate(
            self._first + server_round, parameters, client_manager
        )
        if not pairs:
            self._finish(server_round)
        return pairs

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """End a round that clients evaluated; empties `results`, as :meth:`aggregate_fit`."""
        loss, metrics = self._strategy.aggregate_evaluate(
            self._first + server_round, results, failures
        )
        results.clear()
        self._recorder.tested_by_clients(loss, metrics)
        self._finish(server_round)
        return loss, metrics

    def _finish(self, server_round: int) -> None:
        parameters = self._parameters
        if parameters is None:
            return
        if self._received_bytes >= _RETURN_AFTER_BYTES:
            self._received_bytes = 0
            return_freed_memory()
        self._recorder.finish_round(
            self._first + server_round,
            lambda: parameters_to_ndarrays(parameters),
            lambda: strategy_state(self._strategy),
        )
