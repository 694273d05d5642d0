"""A module's buffers, such as BatchNorm's statistics, put back after something has used them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def buffers_restored(module: nn.Module, *, only_on_error: bool = False) -> Iterator[None]:
    """Put a module's buffers back after what is inside, also those that it has replaced.

    Parameters
    ----------
    module : nn.Module
        Its buffers keep their memory.
    only_on_error : bool
        Whether they stay as they have become, unless something is raised.
    """
    before = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    stay = False
    try:
        yield
        stay = only_on_error
    finally:
        if not stay:
            with torch.no_grad():
                for part, name, buffer, old in before:
                    part._buffers[name] = buffer.copy_(old)
