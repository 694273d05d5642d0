"""One look for all pictures: no pyplot, and colours that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

Color = tuple[float, float, float, float]

# Okabe and Ito's colours without yellow, which is too pale for a line, and with a grey.
DISTINCT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
DASHES = ("-", "--", "-.", ":")
# As many as a class chart of ten classes needs, in the spirit of Paul Tol's muted scheme.
TEN_FILLS = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"),
)
LONGEST_LEGEND = 24
MARKERS_UP_TO = 30
PIXELS_PER_INCH = 130


def new_figure(width: float = 7.5, height: float = 4.5) -> Figure:
    """Return an empty figure of `width` by `height` inches that keeps its labels inside."""
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    return Figure(figsize=(width, height), dpi=PIXELS_PER_INCH, layout=layout)


def label(axes: Axes, title: str, x: str, y: str) -> None:
    """Title and label `axes`, and draw a quiet grid behind the data."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def whole_numbers(axes: Axes) -> None:
    """Put ticks of the x axis on whole numbers only, for rounds and clients."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10]))
    left, right = axes.get_xlim()
    if right - left < 1:
        # A single round has no span of its own, and ticks would fall on fractions.
        middle = round((left + right) / 2)
        axes.set_xlim(middle - 1, middle + 1)


def nice_step(count: int, most: int) -> int:
    """Return the least of 1, 2, 5, 10, 20, 50, ... that gives at most `most` steps in `count`."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if count <= step * most:
                return step
        power *= 10


def marker(points: int) -> str:
    """Return the marker of a line: a dot while points are few enough to be seen, else none."""
    return "o" if points <= MARKERS_UP_TO else ""


def ordered_colors(count: int) -> list[Color]:
    """Return `count` colours from dark to light for things that have an order, such as layers."""
    # The last tenth of the map is too pale on white.
    steps = [0.9 * index / max(count - 1, 1) for index in range(count)]
    return [mpl.colormaps["viridis"](step) for step in steps]


def line_styles(count: int) -> list[tuple[Color, str]]:
    """Return a (colour, dash) pair for each of `count` lines; the first 32 pairs all differ."""
    return [
        (
            mpl.colors.to_rgba(DISTINCT[index % len(DISTINCT)]),
            DASHES[(index // len(DISTINCT) + index) % len(DASHES)],
        )
        for index in range(count)
    ]


def layer_styles(count: int) -> list[tuple[Color, str]]:
    """Return a (colour, dash) pair per layer: distinct colours for a few, by depth for many."""
    if count <= len(DISTINCT):
        return line_styles(count)
    dashes = ("-", "--", ":")
    return [(color, dashes[i % len(dashes)]) for i, color in enumerate(ordered_colors(count))]


def layer_legend(figure: Figure, axes: Sequence[Axes], layers: Sequence[str]) -> None:
    """Explain the lines of `axes`: a legend beside the picture, or a colour bar for very many.

    Parameters
    ----------
    figure : Figure
        The picture.
    axes : Sequence[Axes]
        Its panels; the first one's lines carry the labels.
    layers : Sequence[str]
        Names of the layers from input to output.
    """
    if len(layers) > LONGEST_LEGEND:
        add_index_bar(figure, axes, len(layers), "Layer, from input to output")
        return
    small = len(layers) > len(DISTINCT)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside right upper", fontsize=7 if small else 9, frameon=False
    )


def add_index_bar(figure: Figure, axes: Sequence[Axes], count: int, text: str) -> None:
    """Add a colour bar of `count` discrete steps in `ordered_colors`, numbered from 0."""
    colors = ListedColormap(ordered_colors(count))
    norm = BoundaryNorm([index - 0.5 for index in range(count + 1)], count)
    bar = figure.colorbar(ScalarMappable(norm, colors), ax=list(axes), label=text, pad=0.02)
    bar.set_ticks(list(range(0, count, nice_step(count, 10))))
    bar.minorticks_off()


def short_name(layer: str) -> str:
    """Return the name of a layer, for a label, without the ``.weight`` that all of them carry."""
    return plain_text(layer.removesuffix(".weight"))


def plain_text(name: str) -> str:
    """Return `name` for a label as it is: between two ``$`` matplotlib would read a formula."""
    return name.replace("$", r"\$")
