"""Where a model is cut for AdaSplit, and where clients keep their state."""

from __future__ import annotations

from dataclasses import dataclass

from zerofl_flwr.errors import SettingsError


@dataclass(frozen=True)
class SplitSettings:
    """What AdaSplit's parts need beside the method's own settings.

    Parameters
    ----------
    cut : str
        Where the model is cut: the number of a built-in model's cut point, counted from the input
        (1 to 4 for lenet and resnet18, 1 to 3 for femnist_cnn and digits_cnn), or the name of the
        last child that stays on the client. Of a model of your own, how many children stay there,
        or the last one's name.
    projection_dim : int
        Length of the projection that the contrastive loss is taken of.
    full_batches : bool
        Leave an epoch's incomplete last batch out.
    server_threads : int
        Threads that the server trains and tests with, whatever CPUs it may use; the same number
        gives the same bits.
    state_dir : str, optional
        Folder where clients keep their state, which resuming needs; default: clients in the run's
        folder. Workers of a Ray cluster must share it. Runs may share it too: each has a folder of
        its own there, whose name is in its run_name.txt.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    cut: str = "1"
    projection_dim: int = 64
    full_batches: bool = False
    server_threads: int = 2
    state_dir: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no model can be cut with."""
        if not self.cut:
            raise SettingsError("cut is empty; it must be a number or the name of a child")
        for name in ("projection_dim", "server_threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1")
