"""A report's page: one HTML file that holds its pictures and needs nothing else, read offline."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2
import pandas as pd

from simulations.c3 import Budgets
from simulations.comparison.methods import Comparison, Method
from simulations.comparison.summary import (
    C3,
    COMPUTE,
    COUNTED,
    COUNTED_C3,
    DOWNLINK,
    FORWARD,
    MEMORY,
    TOTAL_COMPUTE,
    TOTAL_FORWARD,
    TRAFFIC,
    UPLINK,
    used,
)
from simulations.comparison.sweep import setting_text
from simulations.comparison.tested import CLIENTS
from simulations.markdown import cell_text

_TEMPLATE = "page.html"
_MOST_CLIENTS = 20  # of more, the picture says more than a table
_COLUMNS: Mapping[str, str] = {
    "seeds": "Finished runs.",
    "accuracy": "Test accuracy at the end, in percent, a mean over seeds.",
    "spread": "Its sample standard deviation over seeds, in points.",
    "best": "Accuracy of the best test, in percent, a mean over seeds.",
    "lowest client": "Accuracy of the client that has the lowest, in percent.",
    C3: "Accuracy, discounted by traffic and client compute; see below.",
    TRAFFIC: "10^9 bytes of serialized training messages, both ways, all clients, whole run.",
    COMPUTE: "10^12 multiply-adds of all clients, whole run, backward passes too.",
    TOTAL_COMPUTE: "The same with the server's.",
    "rounds": "Rounds of a run.",
    "previous": "As accuracy, over as many tests just before: whether a run has levelled.",
    "uplink MB per client and round": "10^6 bytes of a client's serialized training messages.",
    "downlink MB per client and round": "The same towards the client.",
    "client seconds per round": "A client's training time in a round.",
    MEMORY: "10^6 bytes of memory that a client's process took at most.",
    UPLINK: "10^9 bytes from all clients, whole run, without tests.",
    DOWNLINK: "The same towards the clients.",
    COUNTED: "Both ways as AdaSplit's authors count: 4 bytes a number that is not zero.",
    FORWARD: "Of forward passes alone, as AdaSplit's authors count.",
    TOTAL_FORWARD: "The same with the server's.",
    COUNTED_C3: "C3 of counted GB and forward multiply-adds.",
}


@dataclass(frozen=True)
class Picture:
    """A PNG file, and what it shows."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Section:
    """Pictures under a heading."""

    heading: str
    pictures: list[Picture]


@dataclass(frozen=True)
class _Cell:
    text: str
    value: str  # what the page sorts by; empty for none


def write_page(
    title: str,
    comparison: Comparison,
    summary: pd.DataFrame,
    clients: pd.DataFrame,
    budgets: Budgets,
    sections: list[Section],
    traffic: pd.DataFrame | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    title : str
        Its heading.
    comparison : Comparison
        The methods, for their settings.
    summary : pandas.DataFrame
        The table of methods, without columns of which nothing is known.
    clients : pandas.DataFrame
        Each client's accuracy; may be empty.
    budgets : Budgets
        Of the C3-Score.
    sections : list of Section
        The pictures; a section without any is left out.
    traffic : pandas.DataFrame, optional
        Megabytes by method and category, which the page shows without columns of zeros.

    Returns
    -------
    str
        HTML. Pictures are inside as data URIs; texts from settings and names are escaped.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("simulations.comparison").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    shown = [
        {
            "heading": section.heading,
            "pictures": [
                {"uri": _data_uri(picture.path), "caption": picture.caption}
                for picture in section.pictures
            ],
        }
        for section in sections
        if section.pictures
    ]
    shared, differing = _settings(comparison.methods)
    return environment.from_string(source).render(
        title=title,
        notes=comparison.notes,
        last_tests=comparison.last_tests,
        of_clients=comparison.tests == CLIENTS,
        methods=len(comparison.methods),
        runs=sum(len(method.runs) for method in comparison.methods),
        columns=[str(column) for column in summary.columns],
        rows=_rows(summary),
        legend={name: text for name, text in _COLUMNS.items() if name in summary.columns},
        c3=_c3_text(summary, budgets),
        sections=shown,
        clients=_client_rows(clients),
        traffic=_traffic_rows(traffic),
        shared=shared,
        differing=differing,
    )


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _rows(table: pd.DataFrame) -> list[list[_Cell]]:
    return [[_cell(value) for value in row] for row in table.itertuples(index=False, name=None)]


def _cell(value: object) -> _Cell:
    text = cell_text(value)
    return _Cell(text, str(value) if text else "")


def _c3_text(summary: pd.DataFrame, budgets: Budgets) -> str:
    """Say what the scores were computed with, or why there are none."""
    if C3 not in summary.columns:
        return "There is no C3-Score: no method has both an accuracy and a count of multiply-adds."
    known = budgets.for_methods(*used(summary))
    most = ", the most among the methods"
    bandwidth = f"{known.bandwidth:.4g}{most if budgets.bandwidth is None else ''}"
    compute = f"{known.compute:.4g} T{most if budgets.compute is None else ''}"
    return (
        f"C3 = A · exp(−(B + C) / {known.temperature:g}): A is the accuracy in [0, 1], B the "
        f"gigabytes up and down over {bandwidth}, and C the clients' multiply-adds, backward "
        f"passes too, over {compute}. What is over a budget counts on, as a ratio above 1."
    )


def _client_rows(clients: pd.DataFrame) -> dict[str, object] | None:
    """Return columns and rows, a method with a cell a client; None for none, or too many."""
    ids = sorted(set(clients["client"].tolist()))
    if not ids or len(ids) > _MOST_CLIENTS:
        return None
    rows = []
    for method, group in clients.groupby("method", sort=False):
        figures = {
            client: (accuracy, deviation)
            for client, accuracy, deviation in zip(
                group["client"], group["accuracy"], group["spread"], strict=True
            )
        }
        cells = [_accuracy_cell(*figures.get(client, (math.nan, math.nan))) for client in ids]
        rows.append([_cell(method), *cells])
    return {"columns": ["method", *(f"client {client}" for client in ids)], "rows": rows}


def _traffic_rows(traffic: pd.DataFrame | None) -> dict[str, object] | None:
    """Return columns and rows; None for none."""
    if traffic is None or traffic.empty:
        return None
    shown = [c for c in traffic.columns if c == "method" or (traffic[c] > 0).any()]
    return {"columns": shown, "rows": _rows(traffic[shown])}


def _accuracy_cell(accuracy: float, deviation: float) -> _Cell:
    if math.isnan(accuracy):
        return _Cell("", "")
    more = "" if math.isnan(deviation) else f" ± {deviation:.1f}"
    return _Cell(f"{accuracy:.1f}{more}", repr(float(accuracy)))


def _settings(methods: list[Method]) -> tuple[dict[str, str], dict[str, object]]:
    """Return what all methods share, and the rest by method; a dash where one has it not."""
    keys = sorted({key for method in methods for key in method.settings})
    texts = {
        method.name: {
            key: setting_text(key, method.settings[key]) if key in method.settings else "–"
            for key in keys
        }
        for method in methods
    }
    values = {key: {text[key] for text in texts.values()} for key in keys}
    shared = {key: next(iter(found)) for key, found in values.items() if len(found) == 1}
    own = [key for key in keys if key not in shared]
    rows = [[name, *(text[key] for key in own)] for name, text in texts.items()]
    return shared, {"keys": own, "rows": rows}
