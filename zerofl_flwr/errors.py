"""The errors that lean-flwr raises for its users, under one base class."""

from __future__ import annotations


class LeanFlwrError(Exception):
    """Base class of every error that this package raises on purpose."""


class SettingsError(LeanFlwrError, ValueError):
    """A setting has a value that cannot work; raised before any training starts."""


class SelectionError(LeanFlwrError, ValueError):
    """Top-K selection was asked for something that has no answer, such as ranking NaN."""


class DataError(LeanFlwrError, ValueError):
    """A data set is missing, malformed, or cannot be partitioned as asked."""


class PayloadError(LeanFlwrError, ValueError):
    """A payload was refused; nothing of it has been applied.

    Parameters
    ----------
    reason : str
        What was expected and what came.
    sender : str, optional
        Who sent it, e.g. ``"client 3"`` or ``"server"``.
    layer : str, optional
        Name of the tensor that the fault is in.
    field : str, optional
        The field of the payload, e.g. ``"indices"``.
    """

    def __init__(
        self,
        reason: str,
        *,
        sender: str | None = None,
        layer: str | None = None,
        field: str | None = None,
    ) -> None:
        self.reason = reason
        self.sender = sender
        self.layer = layer
        self.field = field
        places = (sender, layer and f"layer {layer}", field and f"field {field}")
        prefix = ", ".join(place for place in places if place)
        super().__init__(f"{prefix}: {reason}" if prefix else reason)

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the keyword fields, so that the error survives a process boundary."""
        return (_rebuild_payload_error, (self.reason, self.sender, self.layer, self.field))


class RoundFailedError(LeanFlwrError, RuntimeError):
    """A round cannot produce a model, e.g. because too few replies were good."""


class ClientFailedError(LeanFlwrError, RuntimeError):
    """A client could not answer; carries who it was and why."""


def _rebuild_payload_error(
    reason: str, sender: str | None, layer: str | None, field: str | None
) -> PayloadError:
    return PayloadError(reason, sender=sender, layer=layer, field=field)
