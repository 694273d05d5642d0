from __future__ import annotations

import pytest

from simulations.plot_style import (
    layer_styles,
    line_styles,
    marker,
    new_figure,
    nice_step,
    ordered_colors,
    plain_text,
    short_name,
    whole_numbers,
)


@pytest.mark.parametrize("count", [1, 8, 9, 32])
def test_no_two_lines_look_the_same(count: int) -> None:
    assert len(set(line_styles(count))) == count


@pytest.mark.parametrize("count", [1, 2, 16, 60])
def test_layers_look_different_and_get_lighter_with_depth(count: int) -> None:
    assert len(set(layer_styles(count))) == count
    colors = ordered_colors(count)
    lightness = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b, _ in colors]
    assert lightness == sorted(lightness)


@pytest.mark.parametrize(
    ("count", "most", "step"),
    [(1, 10, 1), (10, 10, 1), (11, 10, 2), (21, 10, 5), (62, 10, 10), (500, 12, 50), (501, 5, 200)],
)
def test_ticks_fall_on_nice_numbers(count: int, most: int, step: int) -> None:
    assert nice_step(count, most) == step


def test_markers_only_while_points_are_few() -> None:
    assert marker(1) == "o"
    assert marker(30) == "o"
    assert marker(31) == ""


@pytest.mark.parametrize("rounds", [[1], [0, 1], [5, 5], list(range(1, 701))])
def test_round_ticks_are_whole(rounds: list[int]) -> None:
    axes = new_figure().subplots()
    axes.plot(rounds, rounds)
    whole_numbers(axes)
    ticks = axes.get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    left, right = axes.get_xlim()
    assert any(left <= tick <= right for tick in ticks)


def test_only_the_common_ending_of_a_layer_is_dropped() -> None:
    assert short_name("layer1.0.conv1.weight") == "layer1.0.conv1"
    assert short_name("weights.proj") == "weights.proj"


@pytest.mark.parametrize("name", ["$_$", "$$", "US$", "a$^$b$", "\\$x$", "plain"])
def test_a_name_with_dollars_is_no_formula(name: str) -> None:
    figure = new_figure()
    drawn = figure.text(0, 0, plain_text(name)).get_window_extent()
    literally = figure.text(0, 0, name, parse_math=False).get_window_extent()
    assert drawn.bounds == literally.bounds
    assert short_name(f"{name}.weight") == plain_text(name)
