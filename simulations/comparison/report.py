"""Writes a report: tables as CSV and Markdown, pictures, and a page that holds them all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from simulations.c3 import Budgets
from simulations.comparison import figures
from simulations.comparison.accuracy import client_table
from simulations.comparison.costs import knows_compute
from simulations.comparison.curves import AXES, By, compare_accuracy, has_curve
from simulations.comparison.grid import ALL, slug
from simulations.comparison.methods import Comparison
from simulations.comparison.page import Picture, Section, write_page
from simulations.comparison.rounds import all_rounds, rounds_table
from simulations.comparison.setting_figure import accuracy_by_setting
from simulations.comparison.summary import summary_table
from simulations.comparison.traffic import traffic_table
from simulations.markdown import to_markdown
from simulations.report import PICTURES
from zerofl_flwr.errors import DataError

_RUN_PICTURES = {
    "mask_overlap": "how much of the last round's mask is there again",
    "overlap_matrix": "overlap of the masks of any two rounds",
    "zero_positions": "which weights are zero, by round; white is kept",
    "client_accuracy": "accuracy of each client by round",
    "picks": "who uploaded, and when",
    "ucb_terms": "the two terms of the orchestrator's score",
    "client_masks": "overlap of the clients' masks",
}


@dataclass
class _Files:
    """Writes files into the report's folder, and remembers them."""

    out: Path
    written: list[Path]

    def table(self, name: str, table: pd.DataFrame) -> None:
        # Without the time of day, so that the same runs give the same file.
        packed: Any = {"method": "gzip", "mtime": 0} if name.endswith(".gz") else None
        table.to_csv(self._path(name), index=False, float_format="%.6g", compression=packed)

    def text(self, name: str, text: str) -> None:
        self._path(name).write_text(text, encoding="utf-8")

    def picture(self, name: str, figure: Figure | None, caption: str) -> list[Picture]:
        """Return the one picture, or none if there is nothing to draw."""
        if figure is None:
            return []
        path = self._path(name)
        figure.savefig(path)
        return [Picture(path, caption)]

    def _path(self, name: str) -> Path:
        self.written.append(self.out / name)
        return self.out / name


def write_report(
    comparison: Comparison, out: Path, budgets: Budgets | None = None, title: str = "Comparison"
) -> list[Path]:
    """Write the report of finished runs.

    Parameters
    ----------
    comparison : Comparison
        The methods. Each of its figures, or one of all methods when it has none, is drawn by round,
        by megabytes, by multiply-adds where they are known, and by seconds, as far as its methods
        have finished runs that were tested; each of its setting figures once. Of each method among
        its pictures, the first run is drawn.
    out : Path
        The report's folder; made if needed.
    budgets : Budgets, optional
        Of the C3-Score; default: the largest among the methods.
    title : str, optional
        Heading of the page.

    Returns
    -------
    list of Path
        What was written: ``summary.csv``, ``summary.md``, ``rounds.csv``, ``all-rounds.csv.gz``,
        ``clients.csv`` where clients test for themselves, ``traffic.csv`` where runs tell,
        pictures, and ``index.html``, which needs no other file.

    Raises
    ------
    LeanFlwrError
        If there is no method, a table is missing or broken, a budget cannot be, or clients do not
        test whose tests are asked for.
    """
    if not comparison.methods:
        why = "".join(f"; {note}" for note in comparison.notes)
        raise DataError(f"no run is finished, so that there is nothing to report{why}")
    budgets = budgets or Budgets()
    folders = comparison.folders
    summary = summary_table(folders, comparison.last_tests, budgets, comparison.tests)
    clients = client_table(folders, comparison.last_tests)
    out.mkdir(parents=True, exist_ok=True)
    files = _Files(out, [])
    files.table("summary.csv", summary)
    known = summary.dropna(axis="columns", how="all")
    files.text("summary.md", to_markdown(known) + "\n")
    rounds = all_rounds(comparison)
    files.table("rounds.csv", rounds_table(rounds))
    files.table("all-rounds.csv.gz", rounds)
    if not clients.empty:
        files.table("clients.csv", clients)
    traffic = traffic_table(folders)
    if not traffic.empty:
        files.table("traffic.csv", traffic)
    sections = [
        Section("Accuracy", _curves(comparison, files)),
        Section("By setting", _by_setting(comparison, summary, files)),
        Section("What it cost", _costs(summary, files)),
        Section("Client by client", _clients(clients, list(folders), files)),
        Section("Single runs", _single_runs(comparison, files)),
    ]
    files.text(
        "index.html", write_page(title, comparison, known, clients, budgets, sections, traffic)
    )
    return files.written


def _curves(comparison: Comparison, files: _Files) -> list[Picture]:
    pictures, tests = [], comparison.tests
    runs = {
        name: folders for name, folders in comparison.folders.items() if has_curve(folders, tests)
    }
    asked = comparison.figures or {ALL: list(comparison.folders)}
    for name, methods in asked.items():
        chosen = {method: runs[method] for method in methods if method in runs}
        for by in AXES:
            drawn = {
                method: folders
                for method, folders in chosen.items()
                if by != "multiply-adds" or all(knows_compute(folder) for folder in folders)
            }
            if drawn:
                figure = compare_accuracy(drawn, by, methods, tests)
                pictures += files.picture(f"{name}-by-{by}.png", figure, _caption(name, by))
    return pictures


def _caption(name: str, by: By) -> str:
    what = "" if name == ALL else f"{name}: "
    return (
        f"{what}Test accuracy by {by}. A line is the mean over seeds, its band goes from the "
        "lowest seed to the highest."
    )


def _by_setting(comparison: Comparison, summary: pd.DataFrame, files: _Files) -> list[Picture]:
    pictures, settings = [], {method.name: method.settings for method in comparison.methods}
    for stem, figure in comparison.setting_figures.items():
        caption = (
            f"{stem}: Test accuracy at the end by {figure.setting}. A point is the mean over "
            "seeds; bars are the standard deviation over seeds."
        )
        drawn = accuracy_by_setting(figure, settings, summary)
        pictures += files.picture(f"{stem}.png", drawn, caption)
    return pictures


def _costs(summary: pd.DataFrame, files: _Files) -> list[Picture]:
    bars = files.picture(
        "c3.png",
        figures.c3_bars(summary),
        "C3-Score by method, from measured bytes and the clients' multiply-adds.",
    )
    traffic = files.picture(
        "trade-off.png",
        figures.trade_off(summary),
        "Accuracy against the traffic of a whole run, a point a method; bars are the standard "
        "deviation over seeds. No other method is as accurate with less traffic as one on the "
        "grey line.",
    )
    return bars + traffic


def _clients(clients: pd.DataFrame, methods: list[str], files: _Files) -> list[Picture]:
    caption = "Accuracy of each client at the end, on its own test samples."
    figure = figures.client_accuracy(clients, methods)
    return files.picture("client-accuracy.png", figure, caption)


def _single_runs(comparison: Comparison, files: _Files) -> list[Picture]:
    pictures, runs = [], {method.name: method.runs for method in comparison.methods}
    for method in comparison.pictures:
        if method not in runs:
            continue
        first = runs[method][0]
        for name, caption in _RUN_PICTURES.items():
            pictures += files.picture(
                f"{slug(method)}-{name.replace('_', '-')}.png",
                PICTURES[name](first.folder),
                f"{method}, seed {first.seed}: {caption}.",
            )
    return pictures
