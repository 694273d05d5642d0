"""Where two runs' settings differ, in words."""

from __future__ import annotations

from simulations.settings import RunSettings


def differences(settings: RunSettings, wanted: RunSettings) -> str:
    """Say which settings differ, and how.

    Returns
    -------
    str
        By name, such as ``"rounds is 10 instead of 5, seed is 3 instead of unset"``; empty when
        nothing differs. What the method has no use for does not count.
    """
    has, should = settings.to_mapping(), wanted.to_mapping()
    return ", ".join(
        f"{key} is {_text(has.get(key))} instead of {_text(should.get(key))}"
        for key in sorted(has.keys() | should.keys())
        if has.get(key) != should.get(key)
    )


def _text(value: object) -> str:
    return "unset" if value is None else repr(value)
