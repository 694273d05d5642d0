"""Options of the AdaSplit strategy besides the method's settings, and what does not go together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from adasplit_flwr.client_state import check_run_name
from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel, check_split
from strategies.adasplit_replies import CutShapes, dense_bytes
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.topk import exact_fraction

MAX_UPLOAD_MB = 1024.0
"""What a client's activations of a message may take unless the strategy is told otherwise."""


@dataclass(frozen=True)
class Participation:
    """How many of the available clients take part; names as in Flower's FedAvg.

    Parameters
    ----------
    rounds : int
        Rounds of the run.
    fraction_fit, min_fit, min_available
        Share of the clients that train in a round, the fewest of them, and how many to wait for.
    evaluate_every : int
        Clients test in every so many rounds, and in the last.
    fraction_evaluate : float
        Share of the clients that test; 0: none ever.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    rounds: int
    fraction_fit: float
    min_fit: int
    min_available: int
    evaluate_every: int
    fraction_evaluate: float

    def __post_init__(self) -> None:
        """Refuse what cannot run."""
        names = {"min_fit": "min_fit_clients", "min_available": "min_available_clients"}
        for name in ("rounds", "min_fit", "min_available", "evaluate_every"):
            check_whole(names.get(name, name), getattr(self, name))
        for name in ("fraction_fit", "fraction_evaluate"):
            exact_fraction(getattr(self, name), name, numbers_only=True)

    def check_round(self, server_round: int) -> None:
        """Refuse a round beyond the last.

        Raises
        ------
        SettingsError
            Naming both.
        """
        if server_round > self.rounds:
            raise SettingsError(
                f"round {server_round} was asked for; this AdaSplit was made for "
                f"rounds={self.rounds}"
            )

    def tests_in(self, server_round: int) -> bool:
        """Say whether clients test after a round."""
        due = server_round % self.evaluate_every == 0 or server_round == self.rounds
        return due and self.fraction_evaluate > 0


def share_of(clients: int, fraction: float) -> int:
    """Count a share of clients, rounded down as Flower does, but exact: .29 of 100 is 29."""
    return int(Decimal(str(fraction)) * clients)


def settings_of(settings: AdaSplitSettings | None, options: Mapping[str, Any]) -> AdaSplitSettings:
    """Return the settings that were given as such, or field by field.

    Raises
    ------
    SettingsError
        If both were, a field is unknown, or a value cannot work.
    """
    if settings is not None and options:
        raise SettingsError(f"give settings or {sorted(options)}, not both")
    known = AdaSplitSettings.__dataclass_fields__
    for name in options:
        if name not in known:
            raise SettingsError(unknown_name("AdaSplit setting", name, known))
    return settings if settings is not None else AdaSplitSettings(**options)


def check_options(settings: AdaSplitSettings, participation: Participation, run: str) -> None:
    """Refuse what the settings and the strategy's options cannot be together.

    Raises
    ------
    SettingsError
        With the reason.
    """
    check_run_name(run)
    if settings.shares_weights:
        _check_share_every(settings, participation.rounds)
    if settings.client_weights != "relayed":
        return
    for name, value in (
        ("fraction_fit", participation.fraction_fit),
        ("min_fit_clients", participation.min_fit),
    ):
        if value != 1:
            raise SettingsError(
                f"{name} is {value}, but with client_weights 'relayed' one client trains in a "
                "round and all of them in turn: leave it at 1"
            )


def _check_share_every(settings: AdaSplitSettings, rounds: int) -> None:
    finishing = " and one that brings the server's last gradients" * settings.returns_gradients
    needed = settings.share_every + settings.returns_gradients
    if needed > rounds:
        raise SettingsError(
            f"share_every is {settings.share_every}, so that client parts are shared after "
            f"{settings.share_every} rounds{finishing}, but rounds is {rounds}: it must be at "
            f"least {needed}"
        )


def cut_shapes(
    split: SplitModel,
    sample_shape: tuple[int, ...],
    num_classes: int,
    max_batch_size: int,
    max_upload_mb: float,
) -> CutShapes:
    """Try the cut network, and hold its outputs against the classes.

    Raises
    ------
    SettingsError
        If a part fails, the server part has another number of outputs, a number cannot be, or not
        even one sample's activation fits into `max_upload_mb`.
    """
    check_whole("num_classes", num_classes)
    check_whole("max_batch_size", max_batch_size)
    check_positive("max_upload_mb", max_upload_mb)
    shapes = check_split(split, sample_shape)
    if shapes.num_outputs != num_classes:
        raise SettingsError(
            f"the server part has {shapes.num_outputs} outputs; expected one for each of "
            f"{num_classes} classes"
        )
    cut = CutShapes(shapes.activation, num_classes, max_batch_size, max_upload_mb)
    if not cut.max_samples:
        raise SettingsError(
            f"max_upload_mb is {max_upload_mb!r}, but the activation of one sample, of shape "
            f"{cut.activation}, takes {dense_bytes(1, cut.activation) / 10**6:g} MB"
        )
    return cut


def check_whole(name: str, value: object) -> None:
    """Refuse what is no whole number from 1."""
    if type(value) is not int or value < 1:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number from 1")


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise SettingsError(f"{name} is {value!r}; it must be a positive number")
