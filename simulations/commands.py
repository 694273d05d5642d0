"""Commands beside lean-flwr: those of benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import typer
from rich.console import Console
from rich.markup import escape

from zerofl_flwr.errors import LeanFlwrError


def command(main: Callable[..., None]) -> typer.Typer:
    """Make a function with typer's annotations a command; call what is returned to run it.

    An error of ours is one message on standard error, and exit code 2, as typer's own are. Any
    other is a plain traceback.
    """

    @wraps(main)
    def run(*arguments: object, **options: object) -> None:
        try:
            main(*arguments, **options)
        except LeanFlwrError as error:
            message = f"[bold red]error:[/] {escape(str(error))}"
            Console(stderr=True).print(message, soft_wrap=True, highlight=False)
            raise typer.Exit(2) from error

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    return app
