"""The bar under the lines of a long command, on a terminal; elsewhere it is not drawn."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(console: Console) -> Progress:
    """Return a bar with a task's name, how much of it is done, and the time that is left.

    Parameters
    ----------
    console : Console
        The command's. What is printed there meanwhile appears above the bar, which leaves nothing
        behind.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # Where it is not drawn, it would leave an empty line.
    return Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
