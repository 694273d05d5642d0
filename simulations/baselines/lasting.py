"""A client of which something lasts from round to round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from adasplit_flwr.kept_states import KeptStates
from simulations.baselines.client import BaselineClient
from strategies.client_rounds import StatePlan
from zerofl_flwr.errors import SettingsError


class LastingClient(BaselineClient):
    """What :class:`AloneClient` and :class:`ScaffoldClient` share.

    Parameters
    ----------
    state : RecordDict
        ``context.state``, where the states of the last two rounds are kept.
    state_dir : Path, optional
        Folder where they are saved instead, for a client that is started again, and for a run that
        is resumed.
    checkpoint_every : int
        Rounds between two checkpoints of the server, 0 for none: the states that the last two name
        stay in the folder as well.
    *arguments, **options
        As for :class:`BaselineClient`; `partition_id` also says whose states they are.

    Raises
    ------
    SettingsError
        If there is no such device.
    """

    def __init__(
        self,
        *arguments: Any,
        partition_id: int,
        state: RecordDict,
        state_dir: Path | None = None,
        checkpoint_every: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, partition_id=partition_id, **options)
        self.kept = KeptStates(
            state, state_dir, partition_id=partition_id, checkpoint_every=checkpoint_every
        )


def plan_in(config: dict[str, Any], strategy: str) -> StatePlan:
    """Read the plan of a message that a client with a state cannot do without.

    Raises
    ------
    SettingsError
        If there is none, or a bad one.
    """
    plan = StatePlan.from_config(config)
    if plan is None:
        raise SettingsError(
            f"the message does not say which state to go on from: this client needs the strategy "
            f"{strategy} at the server"
        )
    return plan
