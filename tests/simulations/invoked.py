"""The command line, called in this process."""

from __future__ import annotations

import re

from click.testing import Result
from typer.testing import CliRunner

from simulations import __main__ as command_line

PLAIN = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}


def invoke(*arguments: object) -> Result:
    texts = [str(argument) for argument in arguments]
    return CliRunner().invoke(command_line.app, texts, env=PLAIN)


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
