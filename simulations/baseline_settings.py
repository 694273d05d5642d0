"""What a run of a baseline may be told beside the settings that all methods share."""

from __future__ import annotations

from dataclasses import dataclass

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.settings import FAILURE_POLICIES


@dataclass(frozen=True)
class BaselineSettings:
    """How a baseline takes failures, and where its clients keep what lasts.

    Parameters
    ----------
    on_failure : str
        skip a failed reply, or raise and end the run.
    min_replies : int
        Good replies a round needs.
    state_dir : str, optional
        Folder where clients of scaffold and alone keep their state; default: clients in the run's
        folder.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    on_failure: str = "skip"
    min_replies: int = 1
    state_dir: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.on_failure not in FAILURE_POLICIES:
            raise SettingsError(unknown_name("on_failure", self.on_failure, FAILURE_POLICIES))
        if self.min_replies < 1:
            raise SettingsError(f"min_replies is {self.min_replies}; it must be at least 1")
