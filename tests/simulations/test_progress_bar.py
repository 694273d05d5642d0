"""The bar under the lines of a long command."""

from __future__ import annotations

import io

from rich.console import Console

from simulations.progress_bar import progress_bar


def written(console: Console) -> str:
    with progress_bar(console) as progress:
        task = progress.add_task("runs", total=3, completed=1)
        console.print("start   a method, seed 1")
        progress.advance(task)
        progress.refresh()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_what_is_done_under_the_lines() -> None:
    text = written(Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None))
    line, bar = text.index("start   a method, seed 1"), text.rindex("2/3")
    assert line < bar
    assert "runs" in text[line:bar]
    assert text.endswith("\x1b[2K")  # the bar's line is cleared in the end


def test_elsewhere_only_the_lines_are_there() -> None:
    assert written(Console(file=io.StringIO(), width=80)) == "start   a method, seed 1\n"
