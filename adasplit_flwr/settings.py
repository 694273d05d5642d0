"""AdaSplit's settings: one frozen record for the method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from adasplit_flwr.batch_payload import PRECISIONS
from adasplit_flwr.server_masks import MASKS
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.topk import exact_fraction

CHOICES = {
    "selection": ("ucb", "random", "all"),
    "mask": MASKS,
    "client_weights": ("personal", "averaged", "relayed"),
    "server_gradient": ("none", "selected"),
    "inference": ("client", "server"),
    "precision": PRECISIONS,
    "adam_schedule": ("constant", "cosine"),
    "on_failure": ("skip", "raise"),
}
COSINE_STRETCH = 1.1
"""The authors' cosine reaches zero after 22 of 20 epochs, so it never does within the run."""


@dataclass(frozen=True)
class AdaSplitSettings:
    """Everything that AdaSplit lets its user choose; checked when it is built.

    The same names, in kebab-case, are run-config keys and command-line options.

    Parameters
    ----------
    kappa : float
        Share of the rounds, from the first, in which clients train alone and upload no activations;
        tests have traffic of their own.
    eta : float
        Share of a round's clients that upload activations in the global phase: their number is
        rounded, half up, and at least 1.
    selection : str
        Who uploads: ucb (the orchestrator), random or all.
    gamma : float
        Discount of older losses in the orchestrator, in (0, 1], an exchange.
    iterations_per_round : int, optional
        Batches a client takes in one exchange; default: one epoch of its own data.
    mask : str
        Each client's masks over the server part: soft, hard (straight-through) or none.
    mask_penalty : float
        Weight of the L1 norm of the active client's mask in the server's loss.
    mask_memory_mb : int
        Megabytes (10^6 bytes) of masks and their Adam moments that the server keeps in memory; the
        rest lies in a file of the run's folder. Without a folder all stay in memory, 36 MB a client
        for LeNet.
    client_weights : str
        Client parts are personal, averaged, or relayed from client to client.
    share_every : int
        Exchanges between two averagings, or of a client before its part is relayed.
    local_loss : bool
        Whether clients train on their own contrastive loss.
    temperature : float
        Temperature of the contrastive loss.
    activation_penalty : float
        Weight of the activations' L1 norm, a mean over samples, in the clients' loss: makes them
        sparse.
    server_gradient : str
        Who gets the server's gradient with the next message: none, or selected (who uploaded).
    precision : str
        Activations of training travel as float32 or float16, those of tests as float32.
    inference : str
        A test happens at the client, which is sent its server part, or at the server, which is sent
        the activations.
    adam_learning_rate : float
        Learning rate of Adam, of clients and server.
    adam_weight_decay : float
        L2 weight decay of Adam, of clients and server.
    adam_schedule : str
        Learning rate over the global phase: constant or cosine.
    on_failure : str
        What a refused reply does to the round: skip or raise.

    Raises
    ------
    SettingsError
        If a value is out of range, or two values do not fit together.
    """

    kappa: float = 0.6
    eta: float = 0.6
    selection: str = "ucb"
    gamma: float = 0.75
    iterations_per_round: int | None = None
    mask: str = "soft"
    mask_penalty: float = 1e-3
    mask_memory_mb: int = 1024
    client_weights: str = "personal"
    share_every: int = 1
    local_loss: bool = True
    temperature: float = 0.07
    activation_penalty: float = 0.0
    server_gradient: str = "none"
    precision: str = "float32"
    inference: str = "client"
    adam_learning_rate: float = 1e-3
    adam_weight_decay: float = 1e-5
    adam_schedule: str = "constant"
    on_failure: str = "skip"

    def __post_init__(self) -> None:
        """Refuse what cannot run, and what would silently have no effect."""
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise SettingsError(unknown_name(name, getattr(self, name), choices))
        for name in ("kappa", "eta"):
            exact_fraction(getattr(self, name), name, numbers_only=True)
        if self.kappa == 1:
            raise SettingsError("kappa is 1: there would be no global phase to train the server in")
        if self.eta == 0:
            raise SettingsError("eta is 0: no client would ever upload activations")
        for name in ("mask_penalty", "activation_penalty", "adam_weight_decay"):
            self._check_number(name, 0 <= _number(self, name) < math.inf, "a number from 0")
        for name in ("temperature", "adam_learning_rate"):
            self._check_number(name, 0 < _number(self, name) < math.inf, "a positive number")
        self._check_number("gamma", 0 < _number(self, "gamma") <= 1, "in (0, 1]")
        for name in ("mask_memory_mb", "iterations_per_round", "share_every"):
            value = getattr(self, name)
            whole = type(value) is int and value >= 1
            left_out = value is None and name == "iterations_per_round"
            self._check_number(name, whole or left_out, "a whole number from 1")
        self._check_together()

    def _check_number(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise SettingsError(f"{name} is {getattr(self, name)!r}; it must be {expected}")

    def _check_together(self) -> None:
        if not self.local_loss and self.kappa > 0:
            raise SettingsError(
                "local_loss is off, so that clients would do nothing in the local phase: set "
                f"kappa to 0, it is {self.kappa}"
            )
        if not self.local_loss and self.activation_penalty:
            raise SettingsError(
                "activation_penalty is a part of the clients' own loss, but local_loss is off"
            )
        if not self.local_loss and self.server_gradient == "none" and self.shares_weights:
            raise SettingsError(
                f"client_weights is {self.client_weights!r}, but client parts never change without "
                "local_loss and without server_gradient"
            )
        self._check_effects()

    def _check_effects(self) -> None:
        """Refuse what was chosen and would do nothing."""
        names = ("selection", "mask", "client_weights")
        selection, mask, weights = (f"with {name} {getattr(self, name)!r}" for name in names)
        for name, works, because in (
            ("eta", self.selection != "all", f"{selection} everybody uploads"),
            ("gamma", self.selection == "ucb", f"{selection} the orchestrator picks nobody"),
            ("mask_penalty", self.mask != "none", f"{mask} there is nothing to penalise"),
            ("mask_memory_mb", self.mask != "none", f"{mask} there is nothing to keep"),
            ("share_every", self.shares_weights, f"{weights} nothing is shared"),
            ("temperature", self.local_loss, "with local_loss off there is no contrastive loss"),
        ):
            default = type(self).__dataclass_fields__[name].default
            if not works and getattr(self, name) != default:
                raise SettingsError(
                    f"{name} is {getattr(self, name)}, but {because}: leave it at {default}"
                )

    @property
    def shares_weights(self) -> bool:
        """Whether client parts are averaged or relayed."""
        return self.client_weights != "personal"

    @property
    def returns_gradients(self) -> bool:
        """Whether who uploads gets the server's gradients."""
        return self.server_gradient != "none"

    def phase_of(self, server_round: int, rounds: int) -> str:
        """Name the phase of a round of so many: local or global."""
        return "local" if server_round <= self.local_rounds(rounds) else "global"

    def local_rounds(self, rounds: int) -> int:
        """Count the rounds of the local phase: floor(kappa R), exact.

        Parameters
        ----------
        rounds : int
            Rounds of the run, R.

        Raises
        ------
        SettingsError
            If there is no round.
        """
        if rounds < 1:
            raise SettingsError(f"rounds is {rounds}; it must be at least 1")
        return int(Decimal(str(self.kappa)) * rounds)

    def uploads(self, trainers: int) -> int:
        """Count the clients that upload, of so many that train: eta N, half rounded up, from 1."""
        if self.selection == "all":
            return trainers
        exact = Decimal(str(self.eta)) * trainers
        return max(1, int(exact + Decimal("0.5")))

    def learning_rate_at(self, server_round: int, rounds: int) -> float:
        """Give Adam's learning rate in a round.

        With ``cosine`` it stays constant in the local phase, then falls along
        ``(1 + cos(pi * e / E)) / 2``, e counting the rounds of the global phase from 0 and E being
        1.1 times the rounds of the run, as in the authors' 22 for 20 epochs.

        Parameters
        ----------
        server_round : int
            Round number, from 1.
        rounds : int
            Rounds of the run.
        """
        passed = server_round - 1 - self.local_rounds(rounds)
        if self.adam_schedule == "constant" or passed <= 0:
            return self.adam_learning_rate
        cosine = math.cos(math.pi * passed / (COSINE_STRETCH * rounds))
        return self.adam_learning_rate * (1 + cosine) / 2


def _number(settings: Any, name: str) -> float:
    value = getattr(settings, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{name} is {value!r}; it must be a number")
    return float(value)
