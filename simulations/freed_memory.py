"""Give memory that was freed back to the operating system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def return_freed_memory() -> bool:
    """Ask the C library to return its free pages; a round's replies are hundreds of megabytes.

    Flower receives replies in many threads, and glibc keeps what each of them freed for that
    thread alone: the process would look, and be, larger than what it holds.

    Returns
    -------
    bool
        Whether there was anything to return; False where the C library cannot be asked.
    """
    trim = _malloc_trim()
    return trim is not None and bool(trim(0))


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Find glibc's function; musl, macOS and Windows have none."""
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return function
