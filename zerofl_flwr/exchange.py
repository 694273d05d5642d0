"""A client's end of a round, as arrays: the global model that comes, and the reply that goes.

Nothing here knows Flower; :class:`zerofl_flwr.ZeroFLClient` and the mod both use it. A payload
names its layers, by their state_dict keys where the sender knows them and otherwise by their
positions (``"0"``, ``"1"``, ...), which fit every model.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import (
    Entry,
    MetaValue,
    SparseArray,
    TensorSpec,
    WireArray,
    decode,
    encode,
    is_payload,
    read_npy,
)
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.uplink import uplink_entries, uploaded_fraction


@dataclass(frozen=True, eq=False)
class Received:
    """The global model of a message.

    Parameters
    ----------
    arrays : list of ndarray
        Every tensor, dense; may be read-only.
    patterns : dict of int to ndarray of int64
        In a frozen round: ascending flat positions that a mask keeps, by position in `arrays`.
        Empty in other rounds.
    encoded : bool
        Whether it came as a payload; otherwise it was a plain list of arrays.
    """

    arrays: list[Array]
    patterns: dict[int, NDArray[np.int64]]
    encoded: bool


def read_downlink(
    arrays: Sequence[WireArray],
    specs: Sequence[TensorSpec] | None,
    plan: RoundPlan | None,
    *,
    names: Sequence[str] | None = None,
) -> Received:
    """Read the global model, which comes as a payload or as a plain list of arrays.

    Parameters
    ----------
    arrays : sequence of NDArray or bytes
        What came, each as an array or as the ``.npy`` bytes of one.
    specs : sequence of TensorSpec or None
        The model's shapes and dtypes, which a payload has to have; None takes what comes.
    plan : RoundPlan or None
        The message's plan; a payload must be of its round.
    names : sequence of str, optional
        The model's state_dict keys, which a payload's names must be unless they are positions.

    Returns
    -------
    Received
        The model, dense, and its frozen patterns.

    Raises
    ------
    PayloadError
        If a payload cannot be decoded, is of another round or another model, or holds what only
        an uplink may hold.
    """
    if not is_payload(arrays):
        return Received([_plain_array(array) for array in arrays], {}, encoded=False)
    payload = decode(arrays, specs, sender="server")
    if plan is not None:
        check_round(payload.meta.get("round"), plan, sender="server")
    if names is not None:
        check_names([entry.name for entry in payload.entries], names, sender="server")
    patterns = {
        position: entry.data.flat_indices
        for position, entry in enumerate(payload.entries)
        if plan is not None and plan.frozen and isinstance(entry.data, SparseArray)
    }
    return Received([dense_array(entry) for entry in payload.entries], patterns, encoded=True)


def write_reply(
    plan: RoundPlan,
    received: Received,
    trained: Sequence[Array],
    masked: Collection[int],
    *,
    names: Sequence[str] | None = None,
    rule: str | None = None,
    keep: Decimal | None = None,
) -> list[Array]:
    """Select what goes up of a trained model and encode it (section 3.2 of the paper).

    Parameters
    ----------
    plan : RoundPlan
        The round's plan.
    received : Received
        The model as it came.
    trained : sequence of ndarray
        The model after training: as many arrays, of the same shapes and dtypes.
    masked : collection of int
        Positions of the masked arrays. Those with a frozen pattern go up as values there.
    names : sequence of str, optional
        State_dict keys; positions when left out.
    rule : str, optional
        Uplink rule; the plan's when left out.
    keep : Decimal, optional
        Fraction of a masked array that goes up; ``1 - sparsity + mask_ratio`` when left out.

    Returns
    -------
    list of ndarray
        A payload.

    Raises
    ------
    PayloadError, SettingsError, SelectionError
        As :func:`zerofl_flwr.uplink.uplink_entries`; and if the number of arrays has changed.
    """
    count = len(received.arrays)
    if len(trained) != count:
        raise PayloadError(
            f"the client returned {len(trained)} arrays for a model of {count}", sender="client"
        )
    names = names_by_position(count) if names is None else names
    positions = sorted(masked)
    entries = uplink_entries(
        names,
        received.arrays,
        trained,
        masked={names[position] for position in positions},
        rule=rule or plan.rule,
        keep=uploaded_fraction(plan.sparsity, plan.mask_ratio) if keep is None else keep,
        patterns={names[p]: received.patterns[p] for p in positions if p in received.patterns},
    )
    meta: dict[str, MetaValue] = {
        "round": plan.server_round,
        "masked": ",".join(map(str, positions)),
    }
    return encode(entries, meta)


def names_by_position(count: int) -> list[str]:
    """Return the names of arrays whose state_dict keys the sender does not know."""
    return [str(position) for position in range(count)]


def check_round(came: MetaValue | None, plan: RoundPlan, *, sender: str) -> None:
    """Refuse a payload of another round than the plan's.

    Raises
    ------
    PayloadError
        Naming the sender and the field ``round``.
    """
    if type(came) is not int or came != plan.server_round:
        raise PayloadError(
            f"round {plan.server_round} expected, {reprlib.repr(came)} came",
            sender=sender,
            field="round",
        )


def check_names(came: Sequence[str], known: Sequence[str], *, sender: str) -> None:
    """Refuse names that are neither positions nor the known ones, in their order.

    Arrays of two models, or of one model whose layers are registered in another order, could
    otherwise be mixed up wherever their shapes agree.

    Raises
    ------
    PayloadError
        Naming the sender, the first layer at fault, and the field ``name``.
    """
    if list(came) in (list(known), names_by_position(len(known))):
        return
    for position, (name, expected) in enumerate(zip(came, known, strict=True)):
        if name != expected:
            raise PayloadError(
                f"array {position} has this name where the model has {expected}",
                sender=sender,
                layer=name,
                field="name",
            )


def dense_array(entry: Entry) -> Array:
    """Return an entry of the global model as a dense array.

    Raises
    ------
    PayloadError
        If it is what only an uplink may hold: a difference, or a part without its positions.
    """
    if entry.content != "weights":
        raise PayloadError(
            f"the global model came as {entry.content}; expected weights",
            sender="server",
            layer=entry.name,
            field="content",
        )
    if isinstance(entry.data, SparseArray):
        return entry.data.to_dense()
    if isinstance(entry.data, np.ndarray):
        return entry.data
    raise PayloadError(
        f"the global model came as {type(entry.data).__name__}; expected dense or CSR",
        sender="server",
        layer=entry.name,
        field="encoding",
    )


def _plain_array(array: WireArray) -> Array:
    if not isinstance(array, bytes):
        return array
    try:
        return read_npy(array)
    except PayloadError as error:
        raise PayloadError(error.reason, sender="server", field="arrays") from error
