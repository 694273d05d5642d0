"""Figures that name many methods: room for long names beside the data, and none cut off."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from matplotlib.figure import Figure

from simulations.plot_style import new_figure, plain_text

_WIDEST_NAME = 34  # characters, from which a name takes another line
_CHARACTER, _LINE = 0.078, 0.175  # inches, at the size of a legend
_DATA_WIDTH, _DATA_HEIGHT = 6.4, 5.2
_MARGIN = 0.8
_ROW = 0.38


def wrapped(name: object) -> str:
    """Return a method's name for a label, on as many lines as it takes."""
    return plain_text("\n".join(textwrap.wrap(str(name), _WIDEST_NAME)) or " ")


def figure_with_legend(names: Iterable[object]) -> Figure:
    """Return an empty figure with room for a legend of these names on its right."""
    lines = [line for name in names for line in wrapped(name).splitlines()]
    height = max(_DATA_HEIGHT, _LINE * len(lines) + _MARGIN)
    return new_figure(_DATA_WIDTH + _name_width(lines), height)


def figure_of_rows(names: Iterable[object]) -> Figure:
    """Return an empty figure with a row for each of these names, and room for them on its left."""
    texts = [wrapped(name).splitlines() for name in names]
    row = max(_ROW, *(_LINE * len(lines) + 0.1 for lines in texts))
    width = 5.5 + _name_width([line for lines in texts for line in lines])
    return new_figure(width, 1.2 + row * len(texts))


def add_legend(figure: Figure) -> None:
    """Explain the figure's lines and points on its right."""
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)


def _name_width(lines: list[str]) -> float:
    return _MARGIN + _CHARACTER * max((len(line) for line in lines), default=0)
