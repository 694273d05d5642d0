"""The name of a run, under which its clients keep their state."""

from __future__ import annotations

import secrets
from pathlib import Path

from zerofl_flwr.errors import DataError

RUN_NAME = "run_name.txt"
_BYTES = 6
ANY_NAME = f"run-{'0' * 2 * _BYTES}"
"""As long as any run's name."""


def draw_run_name(folder: Path) -> str:
    """Draw a name that no other run has, and write it into the run's folder.

    It travels with every message, and so is of the same length for all: runs of the same settings
    count the same bytes, wherever their folder is. No seed has a part in it.
    """
    name = f"run-{secrets.token_hex(_BYTES)}"
    (folder / RUN_NAME).write_text(f"{name}\n", encoding="utf-8")
    return name


def read_run_name(folder: Path) -> str:
    """Read the name that was drawn for the run in a folder.

    Raises
    ------
    DataError
        If it is not there, or is no text.
    """
    path = folder / RUN_NAME
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: it holds the name under which the clients keep their state"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
