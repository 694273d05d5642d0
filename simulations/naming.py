"""Messages for names that are not known, pointing at the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Word the message for a name that is not among the known ones.

    Parameters
    ----------
    kind : str
        What the name should have been, e.g. ``"partitioner"``.
    name : str
        The name that came.
    known : iterable of str
        All names that would have been accepted.

    Returns
    -------
    str
        One sentence, with the nearest known name when one is near.
    """
    names = sorted(known)
    listed = ", ".join(names) if names else "none"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{hint} (known: {listed})"
