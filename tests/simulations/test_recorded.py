"""Round numbers of a resumed run, and what a recorder is told of each round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import SimpleClientManager
from flwr.server.strategy import FedAvg, Krum, Strategy

from simulations import recorded
from simulations.checkpoint import Checkpoint
from simulations.recorded import RecordedStrategy
from zerofl_flwr.errors import SettingsError

MANAGER = SimpleClientManager()
REPLY = FitRes(Status(Code.OK, ""), Parameters([b"x" * 60, b"x" * 40], "numpy.ndarray"), 1, {})


def parameters_of(value: float) -> Parameters:
    return ndarrays_to_parameters([np.full(2, value)])


class Noting(Strategy):
    """Notes the calls that it gets; its model is the round's number."""

    def __init__(self, *, evaluates: bool = False) -> None:
        self.calls: list[tuple[str, int]] = []
        self.loaded: dict[str, Any] | None = None
        self.evaluates = evaluates
        self.tested = True

    def initialize_parameters(self, client_manager: Any) -> Parameters:
        return parameters_of(0)

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        self.calls.append(("configure_fit", server_round))
        return [("a client", FitIns(parameters, {}))]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.calls.append(("aggregate_fit", server_round))
        return parameters_of(server_round), {"results": results, "failures": failures}

    def evaluate(self, server_round: int, parameters: Parameters) -> Any:
        self.calls.append(("evaluate", server_round))
        return (0.5, {"accuracy": 0.75}) if self.tested else None

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: Any
    ) -> Any:
        self.calls.append(("configure_evaluate", server_round))
        return [("a client", EvaluateIns(parameters, {}))] if self.evaluates else []

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        self.calls.append(("aggregate_evaluate", server_round))
        return 1.25, {"client_accuracy": 0.5, "replies": len(results)}

    def state_arrays(self) -> dict[str, Any]:
        return {"rounds": np.array(len(self.calls))}

    def load_state_arrays(self, state: dict[str, Any]) -> None:
        self.loaded = state


class Listening:
    """A recorder that writes nothing."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.checkpoint = checkpoint
        self.rounds_done = checkpoint.server_round if checkpoint else 0
        self.heard: list[tuple[Any, ...]] = []
        self.seconds: list[float] = []

    def timed(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.heard.append(("timed",))

    def note_server_test(self, server_round: int, loss: float, metrics: Any) -> None:
        self.heard.append(("tested", server_round, loss, metrics))

    def note_client_test(self, loss: float, metrics: Any) -> None:
        self.heard.append(("tested by clients", loss, metrics))

    # As the recorder calls them; nothing here is a test of ours.
    tested, tested_by_clients = note_server_test, note_client_test

    def finish_round(self, server_round: int, arrays: Any, state: Any) -> None:
        values = [array.tolist() for array in arrays()]
        self.heard.append(("finished", server_round, values, list(state())))


def drive(strategy: Strategy, rounds: int) -> list[Any]:
    """Call a strategy as Flower's server does, which counts rounds from 1 always."""
    parameters = strategy.initialize_parameters(MANAGER)
    assert parameters is not None
    strategy.evaluate(0, parameters)
    sent = []
    for number in range(1, rounds + 1):
        [(_, instructions)] = strategy.configure_fit(number, parameters, MANAGER)
        sent.append(parameters_to_ndarrays(instructions.parameters)[0].tolist())
        new, _ = strategy.aggregate_fit(number, [], [])
        assert new is not None
        parameters = new
        strategy.evaluate(number, parameters)
        if strategy.configure_evaluate(number, parameters, MANAGER):
            strategy.aggregate_evaluate(number, [], [])
    return sent


def test_a_new_run_counts_from_one_and_tests_its_initial_model() -> None:
    strategy, recorder = Noting(), Listening()
    drive(RecordedStrategy(strategy, recorder), 2)  # type: ignore[arg-type]
    assert strategy.calls == [
        ("evaluate", 0),
        *[
            (name, number)
            for number in (1, 2)
            for name in ("configure_fit", "aggregate_fit", "evaluate", "configure_evaluate")
        ],
    ]
    assert recorder.heard == [
        ("tested", 0, 0.5, {"accuracy": 0.75}),
        ("timed",),
        ("tested", 1, 0.5, {"accuracy": 0.75}),
        ("finished", 1, [[1.0, 1.0]], ["rounds"]),
        ("timed",),
        ("tested", 2, 0.5, {"accuracy": 0.75}),
        ("finished", 2, [[2.0, 2.0]], ["rounds"]),
    ]
    assert [seconds >= 0 for seconds in recorder.seconds] == [True, True]
    assert strategy.loaded is None


def test_a_resumed_run_counts_on_with_the_model_and_state_of_its_checkpoint() -> None:
    checkpoint = Checkpoint(5, [np.full(2, 41.0)], {"momentum": np.ones(1)}, {})
    strategy, recorder = Noting(), Listening(checkpoint)
    sent = drive(RecordedStrategy(strategy, recorder), 2)  # type: ignore[arg-type]
    assert sent == [[41.0, 41.0], [6.0, 6.0]]
    assert strategy.loaded == {"momentum": np.ones(1)}
    assert [number for _, number in strategy.calls] == [6] * 4 + [7] * 4
    assert [call for call in recorder.heard if call[0] == "finished"] == [
        ("finished", 6, [[6.0, 6.0]], ["rounds"]),
        ("finished", 7, [[7.0, 7.0]], ["rounds"]),
    ]


def test_a_round_that_clients_test_ends_after_their_tests() -> None:
    strategy, recorder = Noting(evaluates=True), Listening()
    drive(RecordedStrategy(strategy, recorder), 1)  # type: ignore[arg-type]
    assert recorder.heard[-2:] == [
        ("tested by clients", 1.25, {"client_accuracy": 0.5, "replies": 0}),
        ("finished", 1, [[1.0, 1.0]], ["rounds"]),
    ]
    assert [call[0] for call in recorder.heard].count("finished") == 1


def test_a_round_without_a_test_on_the_server_ends_too() -> None:
    strategy, recorder = Noting(), Listening()
    strategy.tested = False
    drive(RecordedStrategy(strategy, recorder), 1)  # type: ignore[arg-type]
    assert [call[0] for call in recorder.heard] == ["timed", "finished"]


def test_a_strategy_whose_state_nobody_can_save_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="Krum cannot be checkpointed or resumed"):
        RecordedStrategy(Krum(), Listening())  # type: ignore[arg-type]
    RecordedStrategy(FedAvg(), Listening())  # type: ignore[arg-type]


def test_a_rounds_replies_are_let_go_once_they_are_aggregated() -> None:
    # Flower's server holds on to the list that it passes.
    strategy = RecordedStrategy(Noting(), Listening())  # type: ignore[arg-type]
    results: list[Any] = [("a client", REPLY)]
    strategy.configure_fit(1, parameters_of(0), MANAGER)
    _, metrics = strategy.aggregate_fit(1, results, [])
    passed_on: Any = metrics["results"]
    assert passed_on is results
    assert results == []


def test_the_replies_to_a_test_are_let_go_too() -> None:
    # They may hold activations of all test samples.
    strategy = RecordedStrategy(Noting(evaluates=True), Listening())  # type: ignore[arg-type]
    results: list[Any] = [("a client", "its reply")]
    strategy.configure_evaluate(1, parameters_of(0), MANAGER)
    _, metrics = strategy.aggregate_evaluate(1, results, [])
    assert metrics == {"client_accuracy": 0.5, "replies": 1}
    assert results == []


def test_memory_is_returned_once_enough_came(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[int] = []
    number = 0
    monkeypatch.setattr(recorded, "_RETURN_AFTER_BYTES", 250)
    monkeypatch.setattr(recorded, "return_freed_memory", lambda: returned.append(number))
    strategy = RecordedStrategy(Noting(), Listening())  # type: ignore[arg-type]
    parameters = strategy.initialize_parameters(MANAGER)
    assert parameters is not None
    for number in range(1, 8):
        results: list[Any] = [("a client", REPLY)]
        strategy.evaluate(number, parameters)
        strategy.aggregate_fit(number, results, [])
        strategy.configure_evaluate(number, parameters, MANAGER)
    assert returned == [3, 6]  # 100 bytes a round: after 300, and after 300 more
