"""Messages for names that are not known, pointing at the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_NEAR = 0.5
"""Similarity, as difflib counts it, from which a name may be another's misspelling."""


def looks_like(name: str, known: Iterable[str]) -> bool:
    """Say whether a name is so near to a known one that it may be its misspelling.

    Parameters
    ----------
    name : str
        What came.
    known : iterable of str
        The names to compare it with.
    """
    return bool(difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR))


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Word the hint at the nearest known name, to be put after what is wrong.

    Parameters
    ----------
    name : object
        What came; compared as text.
    known : iterable of str
        The names that would have been accepted.

    Returns
    -------
    str
        ``"; did you mean 'nearest'?"``, however far the nearest is; empty if no name is known.
    """
    near = difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Word the message for a name that is not among the known ones.

    Parameters
    ----------
    kind : str
        What the name should have been, e.g. ``"partitioner"``.
    name : object
        What came.
    known : iterable of str
        All names that would have been accepted.

    Returns
    -------
    str
        One sentence that names the nearest known name and lists all of them.
    """
    names = sorted(known)
    listed = ", ".join(names) if names else "none"
    return f"unknown {kind} {name!r}{did_you_mean(name, names)} (known: {listed})"
