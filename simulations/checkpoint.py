"""A run's state after a round, in one file that is replaced atomically; no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strategies.state import prefixed, unprefixed
from zerofl_flwr.errors import DataError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npz import load_npz, save_npz


@dataclass(frozen=True)
class Checkpoint:
    """What the next round depends on.

    Parameters
    ----------
    server_round : int
        The last finished round.
    arrays : list of ndarray
        The global model after it.
    state : mapping of str to ndarray
        The strategy's state, see :mod:`strategies.state`.
    history : mapping of str to ndarray
        What the recorder collected for the run's plots.
    """

    server_round: int
    arrays: list[Array]
    state: Mapping[str, Array]
    history: Mapping[str, Array]

    def save(self, path: Path) -> None:
        """Write the file beside its final name, flush it to the disk, and move it there."""
        arrays = {f"{index:05d}": array for index, array in enumerate(self.arrays)}
        save_npz(
            path,
            {
                "round": np.array(self.server_round),
                **prefixed("model", arrays),
                **prefixed("state", self.state),
                **prefixed("history", self.history),
            },
        )

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a checkpoint.

        Raises
        ------
        DataError
            If there is none, or it is damaged.
        """
        try:
            content = load_npz(path, what="checkpoint")
        except FileNotFoundError:
            raise DataError(f"there is no checkpoint {path} to resume from") from None
        try:
            server_round = int(content["round"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the checkpoint {path} cannot be read: {error}") from error
        model = unprefixed("model", content)
        return cls(
            server_round=server_round,
            arrays=[model[name] for name in sorted(model)],
            state=unprefixed("state", content),
            history=unprefixed("history", content),
        )
