"""Writes a run's folder while it goes on: tables, JSON lines, checkpoints, one line a round."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import BaseFileLock
from flwr.common import Scalar
from rich.console import Console

from simulations.adasplit_checks import split_run_warnings
from simulations.adasplit_parts import MASKS
from simulations.checkpoint import Checkpoint
from simulations.client_parts import STATES
from simulations.compute import NO_COMPUTE, ComputeMeter, summed
from simulations.data import load_data
from simulations.journal import LINES, TABLES, Journal
from simulations.report import write_plots
from simulations.round_rows import (
    Report,
    TestReport,
    initial_row,
    round_line,
    round_row,
    round_tables,
    test_text,
)
from simulations.run_lock import lock_folder
from simulations.run_models import model_array_names
from simulations.run_name import RUN_NAME, draw_run_name, read_run_name
from simulations.settings import RunSettings, read_config
from simulations.tensorboard import write_scalars
from simulations.zero_positions import ZeroPositions
from strategies import MaskSummary, RoundReport
from strategies.state import State
from zerofl_flwr.errors import DataError, RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npz import save_npz

_PACKAGES = ("lean-flwr", "flwr", "ray", "torch", "numpy", "scipy", "pandas", "flwr-datasets")
_CONFIG, _ENVIRONMENT, _PARTITIONS = "config.toml", "environment.json", "partitions.csv"
_CHECKPOINT, _MODEL, _ZEROS = "checkpoint.npz", "model.npz", "zero_positions.npz"
_MASKS = "mask_summary.npz"
_TENSORBOARD = "tensorboard"
LOG = "flower.log"


class Recorder:
    """The folder of one run.

    Build it with :meth:`create` or :meth:`resume`. Until its last round, or :meth:`close`, nobody
    else can open the folder.

    Attributes
    ----------
    folder : Path
        Absolute path.
    settings : RunSettings
        The run's settings, as in its ``config.toml``.
    checkpoint : Checkpoint or None
        What the run continues from.
    run_name : str
        Name under which clients keep their state; empty for methods whose clients have none.
    on_round : callable or None
        Called with each finished round's number, for a progress bar.
    summarise_masks : callable or None
        Describes AdaSplit's masks; called at the end of the run.
    """

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        lock: BaseFileLock,
        checkpoint: Checkpoint | None = None,
        run_name: str = "",
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.checkpoint = checkpoint
        self.run_name = run_name
        self.console = Console(stderr=True, highlight=False)
        self.on_round: Callable[[int], None] | None = None
        self.summarise_masks: Callable[[], MaskSummary] | None = None
        self._report: Report | None = None
        self._tests: TestReport | None = None
        self._seconds = math.nan
        self._test: dict[str, float] = {}
        self._journal = Journal(folder)
        self._compute = ComputeMeter(settings)
        self._zeros = ZeroPositions(checkpoint.history if checkpoint else {})
        self._lock = lock

    @classmethod
    def create(cls, folder: Path, settings: RunSettings, *, overwrite: bool = False) -> Recorder:
        """Start a new run's folder.

        Raises
        ------
        SettingsError
            If a run is there already, or part of one, and ``overwrite`` is False; or if another
            run writes there.
        """
        folder = folder.absolute()
        if not overwrite:
            _refuse_old_run(folder)  # before the lock, whose file is the first to appear there
        with _released_on_error(lock_folder(folder)) as lock:
            if not overwrite:
                _refuse_old_run(folder)  # once more: it may have come in between
            return cls._create(folder, settings, lock)

    @classmethod
    def _create(cls, folder: Path, settings: RunSettings, lock: BaseFileLock) -> Recorder:
        for path in list(_files_of_a_run(folder)):
            path.unlink()
        (folder / "plots").mkdir(exist_ok=True)
        settings.save(folder / _CONFIG)
        (folder / _ENVIRONMENT).write_text(json.dumps(_environment(), indent=2) + "\n")
        data = load_data(settings.data)
        counts = pd.DataFrame(data.label_counts(), columns=list(data.class_names))
        counts.insert(0, "partition_id", range(len(counts)))
        counts.to_csv(folder / _PARTITIONS, index=False)
        run_name = draw_run_name(folder) if settings.keeps_client_states else ""
        recorder = cls(folder, settings, lock, run_name=run_name)
        if data.without_id:
            recorder._warn(
                f"{data.without_id} training samples have no {settings.data.partition_by!r} and "
                "are left out"
            )
        for line in split_run_warnings(settings, data) if settings.algorithm == "adasplit" else ():
            recorder._warn(line)
        return recorder

    @classmethod
    def resume(cls, folder: Path) -> Recorder:
        """Open a run's folder to continue after its last checkpoint.

        Raises
        ------
        SettingsError, DataError
            If the folder holds no run, no checkpoint, or a finished run; or if another run writes
            there.
        """
        folder = folder.absolute()
        if not (folder / _CONFIG).exists():
            raise DataError(f"{folder} holds no run: it has no {_CONFIG}")
        with _released_on_error(lock_folder(folder)) as lock:
            settings = RunSettings.from_mapping(read_config(folder / _CONFIG))
            checkpoint = Checkpoint.load(folder / _CHECKPOINT)
            if checkpoint.server_round >= settings.simulation.rounds:
                raise SettingsError(f"{folder} is finished: all {checkpoint.server_round} rounds")
            run_name = read_run_name(folder) if settings.keeps_client_states else ""
            # Rows of rounds that the stopped run wrote after its last checkpoint will come again.
            Journal(folder).drop_after(checkpoint.server_round)
            return cls(folder, settings, lock, checkpoint, run_name)

    def close(self) -> None:
        """Let others open the folder; may be called again."""
        self._lock.release()

    @property
    def rounds_done(self) -> int:
        """Rounds that the checkpoint covers."""
        return self.checkpoint.server_round if self.checkpoint else 0

    def aggregated(self, report: Report) -> None:
        """Take a strategy's report of a round."""
        self._report = report

    def timed(self, seconds: float) -> None:
        """Take the seconds from configuring a round's training to its aggregate."""
        self._seconds = seconds

    def tested(self, server_round: int, loss: float, metrics: Mapping[str, Scalar]) -> None:
        """Take the server's test of a round's model; round 0 is the initial model."""
        self._test |= {"loss": loss, "accuracy": float(metrics.get("accuracy", math.nan))}
        if server_round == 0:
            self._journal.append_initial(initial_row(self._test, self.settings) | NO_COMPUTE)
            self.console.print(f"initial model: {test_text(self._test)}")
            self._test = {}

    def tested_one_by_one(self, report: TestReport) -> None:
        """Take the report of a test by clients, each on its own data.

        The round's accuracy is the mean over them, but for ZeroFL, whose server tests.
        """
        self._tests = report
        if self.settings.algorithm == "zerofl":
            return
        figures = {name: float(value) for name, value in report.metrics().items()}
        self._test |= {"loss": report.loss, **figures}

    def tested_by_clients(self, loss: float | None, metrics: Mapping[str, Scalar]) -> None:
        """Take the clients' own tests of a round's model."""
        self._test["client_loss"] = math.nan if loss is None else loss
        self._test["client_accuracy"] = float(metrics.get("client_accuracy", math.nan))
        for name in ("evaluation_downlink_bytes", "evaluation_uplink_bytes"):
            self._test[name] = float(metrics.get(name, 0))

    def finish_round(
        self,
        server_round: int,
        arrays: Callable[[], list[Array]],
        state: Callable[[], State],
    ) -> None:
        """Write a round's rows, its checkpoint, and its line; the last round closes the folder.

        The model's `arrays` and the strategy's `state` are asked for when they are to be saved.

        Raises
        ------
        RoundFailedError
            If the strategy gave no report of the round: its ``on_round`` is not ``aggregated``.
        """
        report, simulation = self._report, self.settings.simulation
        if report is None:
            raise RoundFailedError(f"round {server_round} ended without a report of the strategy")
        row = round_row(server_round, report, self._seconds, self._test, self.settings)
        computed = self._compute.of_clients(report)
        row |= summed(computed)
        if isinstance(report, RoundReport):
            self._zeros.add(server_round, report.masks)
        tables = round_tables(server_round, report, self._tests)
        for client, compute in zip(tables["clients"], computed, strict=True):
            client |= compute
        self._journal.append_round(row, tables)
        if simulation.tensorboard:
            write_scalars(self.folder / _TENSORBOARD, row)
        last = server_round == simulation.rounds
        if last:
            # Before the checkpoint that calls the run finished: a run that is killed in between
            # has its results, and one that is killed earlier can be resumed.
            self._save_results(arrays())
        every = simulation.checkpoint_every
        if every and (last or server_round % every == 0):
            Checkpoint(server_round, arrays(), state(), self._zeros.to_arrays()).save(
                self.folder / _CHECKPOINT
            )
        if last:
            self._draw()
        self.console.print(round_line(row, report, simulation.rounds, self._test), soft_wrap=True)
        self._report, self._seconds, self._test, self._tests = None, math.nan, {}, None
        if self.on_round is not None:
            self.on_round(server_round)
        if last:
            self.close()

    def _save_results(self, arrays: list[Array]) -> None:
        names = model_array_names(self.settings)
        if self.settings.algorithm == "zerofl":
            save_npz(self.folder / _ZEROS, self._zeros.to_arrays())
        if self.summarise_masks is not None:
            summary = self.summarise_masks()
            save_npz(
                self.folder / _MASKS,
                {
                    "clients": np.array(summary.clients, np.int64),
                    "density": summary.density,
                    "overlap": summary.overlap,
                },
            )
        # Last, so that a folder with a final model holds all results; pictures are drawn from them.
        save_npz(self.folder / _MODEL, dict(zip(names, arrays, strict=True)))

    def _draw(self) -> None:
        try:
            write_plots(self.folder)
        except Exception as error:  # a picture is not worth a run: its data is saved already
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", soft_wrap=True, markup=False)


@contextmanager
def _released_on_error(lock: BaseFileLock) -> Iterator[BaseFileLock]:
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def _refuse_old_run(folder: Path) -> None:
    old = next(_files_of_a_run(folder), None)
    if old is None:
        return
    can_go_on = (folder / _CHECKPOINT).exists() and not (folder / _MODEL).exists()
    advice = "continue it with --resume, or" if can_go_on else "choose another folder, or"
    raise SettingsError(f"{folder} holds a run already ({old.name}): {advice} pass --overwrite")


def _files_of_a_run(folder: Path) -> Iterator[Path]:
    """Yield what a run has written, its config first."""
    tables = [f"{table}.csv" for table in TABLES]
    arrays = (_CHECKPOINT, _MODEL, _ZEROS, _MASKS)
    fixed = (_CONFIG, _ENVIRONMENT, RUN_NAME, _PARTITIONS, *tables, LINES, *arrays, LOG)
    yield from (folder / name for name in fixed if (folder / name).exists())
    yield from sorted((folder / STATES).glob("*/client-*/round-*.npz"))
    yield from sorted(path for path in (folder / MASKS).glob("*") if path.is_file())
    yield from sorted((folder / "plots").glob("*.png"))
    yield from sorted((folder / _TENSORBOARD).glob("events.*"))


def _environment() -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
