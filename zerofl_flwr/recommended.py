"""ZeroFL's settings as our study recommends them; the paper's are the defaults of the class."""

from __future__ import annotations

from typing import Any

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.settings import ZeroFLSettings

RAMP_START = 0.3
RAMP_SHARE = 0.6
"""Share of the run's rounds that the ramp takes; the rest trains at the final sparsity."""

_RAMP_OPTIONS = ("sparsity_schedule", "sparsity_start", "sparsity_rounds")


def recommended_settings(rounds: int, **options: Any) -> ZeroFLSettings:
    """Fill in what did best at 95 % sparsity on non-IID data (docs/zerofl-fashion.md).

    Sparsity rises along a cubic from 0.3 to its final value in the first 60 % of the rounds, and
    each position is averaged over those who sent it. The paper keeps both constant and divides by
    all clients. Whatever `options` name is left as it is. Of the ramp's three settings, those that
    are missing are filled in, unless the schedule is named ``constant`` or its rounds are 0.

    Parameters
    ----------
    rounds : int
        Rounds of the run; the ramp's length follows from it.
    **options
        Fields of :class:`ZeroFLSettings`.

    Returns
    -------
    ZeroFLSettings
        With ``sparsity`` at most 0.3 there is no ramp, unless `options` name a part of one; with
        ``sparsity`` 0 or ``per_client=True`` all clients share the denominator.

    Raises
    ------
    SettingsError
        If ``rounds`` is below 1, or as :class:`ZeroFLSettings`.

    Examples
    --------
    >>> settings = recommended_settings(100, sparsity=0.9)
    >>> settings.aggregation, [settings.plan(t).sparsity for t in (1, 20, 60, 100)]
    ('senders', [0.329503, 0.722222, 0.9, 0.9])
    """
    if type(rounds) is not int or rounds < 1:
        raise SettingsError(f"rounds is {rounds!r}; it must be a whole number from 1")
    ramp = {name: options[name] for name in _RAMP_OPTIONS if options.get(name) is not None}
    others = {name: value for name, value in options.items() if name not in _RAMP_OPTIONS}
    plain = ZeroFLSettings(**others)
    filled: dict[str, Any] = {}
    if "aggregation" not in options and plain.sparsity > 0 and not plain.per_client:
        filled["aggregation"] = "senders"
    constant = ramp.get("sparsity_schedule") == "constant" or ramp.get("sparsity_rounds") == 0
    if not constant and (ramp or plain.sparsity > RAMP_START):
        length = max(1, round(RAMP_SHARE * rounds))
        if plain.freeze_mask_after_round is not None:
            # A mask is frozen at its final sparsity only.
            length = min(length, plain.freeze_mask_after_round + 1)
        filled |= {
            "sparsity_schedule": "cubic",
            "sparsity_start": RAMP_START,
            "sparsity_rounds": length,
        }
    return ZeroFLSettings(**filled | others | ramp)
