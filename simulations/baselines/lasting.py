"""A client of which something lasts from round to round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from torch import nn

from simulations.baselines.client import BaselineClient
from simulations.baselines.kept_states import KeptStates
from zerofl_flwr.training import Batches


class LastingClient(BaselineClient):
    """What :class:`AloneClient` and :class:`ScaffoldClient` share.

    Parameters
    ----------
    model, train_batches, validation_batches, partition_id
        As for :class:`BaselineClient`.
    state : RecordDict
        ``context.state``, where the states of the last two rounds are kept.
    state_dir : Path, optional
        Folder where they are saved instead, for a client that is started again, and for a run that
        is resumed.
    kept_states : int
        How many are saved there: one more than the rounds between two checkpoints of the server.
    **options
        As for :class:`BaselineClient`.

    Raises
    ------
    SettingsError
        If there is no such device.
    """

    def __init__(
        self,
        model: nn.Module,
        train_batches: Batches,
        validation_batches: Batches | None = None,
        *,
        partition_id: int,
        state: RecordDict,
        state_dir: Path | None = None,
        kept_states: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(
            model, train_batches, validation_batches, partition_id=partition_id, **options
        )
        self.state_dir = state_dir
        self.kept = KeptStates(state, state_dir, partition_id=partition_id, keep=kept_states)
