"""What the tables of a run's folder say of a round: one row each, of any method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from simulations.settings import RunSettings
from strategies import (
    AdaSplitRoundReport,
    AdaSplitTestReport,
    BaselineRoundReport,
    ClientReport,
    ClientTestReport,
    RoundReport,
)

Row = dict[str, Any]
Report = RoundReport | AdaSplitRoundReport | BaselineRoundReport
TestReport = AdaSplitTestReport | ClientTestReport
_NAMED_CLIENTS = 5


def initial_row(test: Mapping[str, float], settings: RunSettings) -> Row:
    """Return the row of the initial model, round 0, where the server tests it."""
    if settings.algorithm == "baseline":
        return _baseline_row(BaselineRoundReport(0, ()), math.nan, test, math.nan)
    return _zerofl_row(0, None, math.nan, test, math.nan)


def round_row(
    server_round: int,
    report: Report,
    seconds: float,
    test: Mapping[str, float],
    settings: RunSettings,
) -> Row:
    """Return a round's row of ``rounds.csv``.

    Parameters
    ----------
    server_round : int
        From 1.
    report : RoundReport, AdaSplitRoundReport or BaselineRoundReport
        What the strategy told.
    seconds : float
        From configuring the round's training to its aggregate.
    test : mapping
        Figures of the round's test; empty where there was none.
    settings : RunSettings
        The run's.

    Returns
    -------
    dict
        Accuracies and ratios in [0, 1], bytes and seconds summed over clients; NaN for what there
        is not.
    """
    rounds = settings.simulation.rounds
    if isinstance(report, AdaSplitRoundReport):
        rate = settings.adasplit.learning_rate_at(server_round, rounds)
        return _adasplit_row(server_round, report, seconds, test, rate)
    rate = settings.training.learning_rate_at(server_round, rounds)
    if isinstance(report, BaselineRoundReport):
        return _baseline_row(report, seconds, test, rate)
    return _zerofl_row(server_round, report, seconds, test, rate)


def round_tables(
    server_round: int, report: Report, test: TestReport | None
) -> dict[str, list[Row]]:
    """Return a round's rows of the other tables, by the table's name."""
    tables: dict[str, list[Row]] = {
        "clients": [_client_row(client) for client in report.clients],
        "traffic": [_traffic_row(client) for client in report.clients],
    }
    if isinstance(report, RoundReport):
        tables["layers"] = [asdict(layer) for layer in report.layers]
    if test is not None:
        tables["tests"] = [asdict(client) for client in test.clients]
    return {name: [{"round": server_round, **row} for row in rows] for name, rows in tables.items()}


def round_line(
    row: Mapping[str, Any], report: Report, rounds: int, test: Mapping[str, float]
) -> str:
    """Word a round's row for the terminal, on one line; of a few picked clients, say which."""
    width = len(str(rounds))
    learned = ""
    if isinstance(report, AdaSplitRoundReport):
        learned = f"{report.phase:6s}  "
        if picked := [str(client.partition_id) for client in report.clients if client.picked]:
            few = len(picked) <= _NAMED_CLIENTS
            learned += f"picked {','.join(picked)}" if few else f"{len(picked):3d} picked"
            learned += f"  server loss {report.server_loss:6.3f}  "
        if report.held_back:
            learned += f"held back {report.held_back}  "
    return (
        f"round {row['round']:{width}d}/{rounds}  {learned}{test_text(test)}  "
        f"up {row['uplink_bytes'] / 1e6:8.2f} MB  down {row['downlink_bytes'] / 1e6:8.2f} MB  "
        f"{row['round_seconds']:6.1f} s  failures {row['failures']}"
    )


def test_text(test: Mapping[str, float]) -> str:
    """Word a test's figures; an accuracy may be the mean over clients."""
    if "accuracy" not in test:
        return "not tested    "
    return f"accuracy {100 * test['accuracy']:5.1f} %  loss {test['loss']:6.3f}"


test_text.__test__ = False  # type: ignore[attr-defined]  # not a test of pytest's


def _zerofl_row(
    server_round: int,
    report: RoundReport | None,
    seconds: float,
    test: Mapping[str, float],
    learning_rate: float,
) -> Row:
    metrics: Mapping[str, Any] = report.metrics() if report else {}
    return {
        "round": server_round,
        "loss": test.get("loss", math.nan),
        "accuracy": test.get("accuracy", math.nan),
        "client_loss": test.get("client_loss", math.nan),
        "client_accuracy": test.get("client_accuracy", math.nan),
        "train_loss": metrics.get("train_loss", math.nan),
        "clients": len(report.clients) if report else 0,
        "replies": metrics.get("replies", 0),
        "failures": metrics.get("failures", 0),
        "sparsity": report.plan.sparsity if report else math.nan,
        "mask_ratio": report.plan.mask_ratio if report else math.nan,
        "learning_rate": learning_rate,
        **_training_bytes(metrics),
        **_test_bytes(test),
        "train_seconds": metrics.get("train_seconds", math.nan),
        "round_seconds": seconds,
        "nonzero_ratio": metrics.get("nonzero_ratio", math.nan),
        "mask_overlap": metrics.get("mask_overlap", math.nan),
    }


def _client_row(client: ClientReport) -> Row:
    """Return what ``clients.csv`` says of a client's round; what its bytes are is not in it."""
    return {name: value for name, value in vars(client).items() if name not in ("down", "up")}


def _traffic_row(client: ClientReport) -> Row:
    return {
        "partition_id": client.partition_id,
        **{f"up_{name}": size for name, size in client.up.by_category().items()},
        **{f"down_{name}": size for name, size in client.down.by_category().items()},
        "uplink_bytes_counted": client.up.counted,
        "downlink_bytes_counted": client.down.counted,
    }


def _training_bytes(metrics: Mapping[str, Any]) -> Row:
    """Return a round's bytes, measured and as AdaSplit's authors count."""
    names = ("downlink_bytes", "uplink_bytes", "downlink_bytes_counted", "uplink_bytes_counted")
    return {name: metrics.get(name, 0) for name in names}


def _test_bytes(test: Mapping[str, float]) -> Row:
    """Return the bytes of a test that clients took part in, apart from those of training."""
    return {
        "test_downlink_bytes": int(test.get("evaluation_downlink_bytes", 0)),
        "test_uplink_bytes": int(test.get("evaluation_uplink_bytes", 0)),
    }


def _adasplit_row(
    server_round: int,
    report: AdaSplitRoundReport,
    seconds: float,
    test: Mapping[str, float],
    learning_rate: float,
) -> Row:
    metrics = report.metrics()
    return {
        "round": server_round,
        "phase": report.phase,
        "loss": test.get("loss", math.nan),
        "accuracy": test.get("accuracy", math.nan),
        "trained_accuracy": test.get("trained_accuracy", math.nan),
        "learned_accuracy": test.get("learned_accuracy", math.nan),
        "train_loss": metrics["train_loss"],
        "server_loss": metrics["server_loss"],
        "clients": len(report.clients),
        "picked": metrics["picked"],
        "held_back": metrics["held_back"],
        "replies": metrics["replies"],
        "failures": metrics["failures"],
        "restarts": metrics["restarts"],
        "learning_rate": learning_rate,
        **_training_bytes(metrics),
        **_test_bytes(test),
        "test_failures": int(test.get("evaluation_failures", 0)),
        "train_seconds": metrics["train_seconds"],
        "server_seconds": metrics["server_seconds"],
        "round_seconds": seconds,
        "mask_density": metrics["mask_density"],
    }


def _baseline_row(
    report: BaselineRoundReport, seconds: float, test: Mapping[str, float], learning_rate: float
) -> Row:
    metrics = report.metrics()
    return {
        "round": report.server_round,
        "loss": test.get("loss", math.nan),
        "accuracy": test.get("accuracy", math.nan),
        "trained_accuracy": test.get("trained_accuracy", math.nan),
        "train_loss": metrics["train_loss"],
        "clients": len(report.clients),
        "replies": metrics["replies"],
        "failures": metrics["failures"],
        "restarts": metrics["restarts"],
        "learning_rate": learning_rate,
        **_training_bytes(metrics),
        **_test_bytes(test),
        "test_failures": int(test.get("evaluation_failures", 0)),
        "train_seconds": metrics["train_seconds"],
        "round_seconds": seconds,
    }
