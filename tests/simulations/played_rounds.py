"""Rounds that a recorder is told of without any training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from simulations.recorder import Recorder
from simulations.settings import RunSettings
from simulations.zerofl_parts import initial_arrays
from strategies.mask_report import LayerReport
from strategies.reports import ClientReport, RoundReport
from strategies.traffic import Breakdown


def report_of(settings: RunSettings, server_round: int) -> RoundReport:
    down, up = Breakdown(protocol=5000, counted=12000), Breakdown(0, 0, 0, 900, 0, 100, 800)
    clients = [
        ClientReport(2, 100, 5000, 1000, 1.5, 0.25, down=down, up=up),
        ClientReport(5, 300, 5000, 3000, 0.5, 0.75),
        ClientReport(6, 0, 5000, 0, math.nan, math.nan, "client 6:\n  out of memory"),
    ]
    layers = [LayerReport("fc1.weight", 4, 0.25, 0.5 if server_round > 1 else math.nan, 0.75)]
    masks = {"fc1.weight": np.array([True, False, False, server_round > 1])}
    return RoundReport(settings.zerofl.plan(server_round), clients, layers, masks)


def play_round(recorder: Recorder, server_round: int, *, tested: bool = True) -> None:
    recorder.aggregated(report_of(recorder.settings, server_round))
    recorder.timed(2.5)
    if tested:
        recorder.tested(server_round, 1.5, {"accuracy": 0.5})
    arrays = [array + np.float32(server_round) for array in initial_arrays(recorder.settings)]
    recorder.finish_round(
        server_round, lambda: arrays, lambda: {"wrapped/x": np.array([server_round])}
    )


def play(recorder: Recorder, first: int, last: int) -> None:
    for server_round in range(first, last + 1):
        play_round(recorder, server_round)


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"{name}.csv")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
