"""Tables as Markdown."""

from __future__ import annotations

import math

import pandas as pd


def to_markdown(table: pd.DataFrame) -> str:
    """Return `table` as a Markdown table: numbers to the right, an empty cell for a missing value.

    Numbers of 1 and more carry two decimals, smaller ones three significant digits.
    """
    header = [_escaped(column) for column in table.columns]
    body = [[_escaped(value) for value in row] for row in table.itertuples(index=False, name=None)]
    right = [pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes]
    widths = [max(3, *(len(cell) for cell in cells)) for cells in zip(header, *body, strict=True)]
    rule = [
        "-" * (width - 1) + ":" if numeric else "-" * width
        for width, numeric in zip(widths, right, strict=True)
    ]
    lines = [
        [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(cells, widths, right, strict=True)
        ]
        for cells in (header, rule, *body)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell_text(value: object) -> str:
    """Return a table's cell on one line, a number as `to_markdown` writes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"
    return " ".join(str(value).split())


def _escaped(value: object) -> str:
    return cell_text(value).replace("|", "\\|")
