"""Finds the texts of a figure that lie on top of each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from matplotlib.axes._base import _AxesBase
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text


def overlapping_texts(figure: Figure) -> list[tuple[str, str]]:
    """Return each pair of drawn texts whose boxes overlap; titles, labels, ticks, legends."""
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in _texts(figure)]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]


def _texts(figure: Figure) -> Iterator[Text]:
    for axes in figure.axes:
        yield from _texts_of(axes)
        for child in axes.child_axes:
            yield from _texts_of(child)
    for legend in figure.legends:
        yield from legend.get_texts()


def _texts_of(axes: _AxesBase) -> Iterator[Text]:
    yield from axes.texts
    titles = (axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
    yield from (title for title in titles if title.get_text())
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_visible():
            yield from _texts_along(axis)


def _texts_along(axis: Axis) -> Iterator[Text]:
    if axis.label.get_text():
        yield axis.label
    low, high = sorted(axis.get_view_interval())
    for tick in axis.get_major_ticks():
        if low <= tick.get_loc() <= high:
            labels = (tick.label1, tick.label2)
            yield from (text for text in labels if text.get_visible() and text.get_text())
