"""Check replies that hold whole arrays, as plain Flower clients send them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from flwr.common import Scalar

from strategies.answers import Refusal, check_examples, in_order
from strategies.replies import Reply
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import TensorSpec, read_npy

ROUND = "round"
"""Config entry and metric: the number of the round."""


def split_checked(
    replies: Sequence[Reply], check: Callable[[Reply], object]
) -> tuple[list[Reply], list[Refusal]]:
    """Split replies into good and refused, both in partition order.

    Parameters
    ----------
    replies : sequence of Reply
        In partition order.
    check : callable
        Raises PayloadError for a reply that is to be refused.
    """
    good: list[Reply] = []
    refused: list[Refusal] = []
    for reply in replies:
        try:
            check(reply)
        except PayloadError as error:
            refused.append(Refusal(reply.member.partition_id, str(error)))
        else:
            good.append(reply)
    return good, in_order(refused)


def check_model(reply: Reply, specs: Sequence[TensorSpec], names: Sequence[str]) -> None:
    """Refuse a reply that is not a whole model of finite numbers, with a number of samples.

    Raises
    ------
    PayloadError
        Naming the client, the layer and the field.
    """
    sender, result = str(reply.member), reply.result
    check_examples(result.num_examples, sender)
    check_count(result.parameters.tensors, len(specs), sender)
    read_arrays(result.parameters.tensors, specs, names, sender)


def check_count(tensors: Sequence[bytes], expected: int, sender: str) -> None:
    """Refuse another number of arrays.

    Raises
    ------
    PayloadError
        Naming the sender and the field ``arrays``.
    """
    if len(tensors) != expected:
        reason = f"expected {expected} arrays, got {len(tensors)}"
        raise PayloadError(reason, sender=sender, field="arrays")


def read_arrays(
    tensors: Sequence[bytes],
    specs: Sequence[TensorSpec],
    names: Sequence[str],
    sender: str,
    *,
    field: str | None = None,
) -> list[Array]:
    """Decode arrays without copying them, and hold each against what is expected.

    Parameters
    ----------
    tensors : sequence of bytes
        As many as `specs`, each the ``.npy`` bytes of an array.
    specs : sequence of TensorSpec
        Shape and dtype of each.
    names : sequence of str
        Their layers' names.
    sender : str
        Whose they are.
    field : str, optional
        What to call the part that they are of a message; default: the property at fault, one of
        ``array``, ``shape``, ``dtype`` and ``values``.

    Returns
    -------
    list of ndarray
        Read-only, finite.

    Raises
    ------
    PayloadError
        Naming the sender, the layer and the field.
    """
    arrays = []
    for tensor, spec, name in zip(tensors, specs, names, strict=True):
        try:
            array = read_npy(tensor)
        except PayloadError as error:
            raise PayloadError(
                error.reason, sender=sender, layer=name, field=field or "array"
            ) from error
        fault = _fault(array, spec)
        if fault is not None:
            where, reason = fault
            raise PayloadError(reason, sender=sender, layer=name, field=field or where)
        arrays.append(array)
    return arrays


def check_round_told(
    metrics: Mapping[str, Scalar], server_round: int, sender: str, *, required: bool = True
) -> None:
    """Refuse a reply to another round than the present one.

    Parameters
    ----------
    metrics : mapping
        The reply's, with an entry ``round``.
    server_round : int
        The present round.
    sender : str
        Whose reply it is.
    required : bool
        Whether a reply must tell its round at all.

    Raises
    ------
    PayloadError
        Naming the sender and the field ``round``.
    """
    if not required and ROUND not in metrics:
        return
    came = metrics.get(ROUND)
    if type(came) is not int or came != server_round:
        reason = f"a reply to round {server_round} expected, to {reprlib.repr(came)} came"
        raise PayloadError(reason, sender=sender, field=ROUND)


def _fault(array: Array, spec: TensorSpec) -> tuple[str, str] | None:
    """Return what property of an array is wrong, and how."""
    if array.shape != spec.shape:
        return "shape", f"expected shape {spec.shape}, got {array.shape}"
    if array.dtype != spec.dtype:
        return "dtype", f"expected {spec.dtype}, got {array.dtype}"
    if not np.isfinite(array).all():
        return "values", f"{int(np.count_nonzero(~np.isfinite(array)))} values are not finite"
    return None
