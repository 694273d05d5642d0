"""A client mod that gives an existing, unchanged Flower client ZeroFL's sparse uplink."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    GetPropertiesRes,
    MessageTypeLegacy,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat as compat

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.exchange import Received, read_downlink, write_reply
from zerofl_flwr.memory import memory_metric
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import is_payload
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.topk import FractionLike, exact_fraction
from zerofl_flwr.uplink import canonical_rule, uploaded_fraction

MaskedArrays = Collection[int] | Callable[[int, tuple[int, ...]], bool]


def sparse_uplink(
    sparsity: FractionLike | None = None,
    mask_ratio: FractionLike | None = None,
    *,
    rule: str | None = None,
    masked: MaskedArrays | None = None,
) -> Mod:
    """Make a mod for ``ClientApp(client_fn, mods=[sparse_uplink(...)])``.

    The client keeps receiving and returning the dense list of arrays that it always did. Around
    it, the mod decodes a sparse downlink, and of the reply uploads only the weights or differences
    that the rule selects (section 3.2 of the paper). The strategy must be
    :class:`strategies.ZeroFL`, and the client a classic one (``NumPyClient`` or ``Client``): apps
    of Flower's Message API (``@app.train()``) are refused.

    The round's plan stays in the config that the client gets, as plain scalars under
    ``zerofl-...``; a client whose model went through :func:`zerofl_flwr.sparsify` hands them to
    :func:`zerofl_flwr.follow_plan`, and any other need not look at them. In a frozen round the
    server's masks say what is uploaded, whatever `masked` says. A reply that is a payload already
    (a :class:`zerofl_flwr.ZeroFLClient` makes one) passes through unchanged, whatever the arguments
    say.

    Parameters
    ----------
    sparsity, mask_ratio : fraction, optional
        What this client uploads: ``1 - sparsity + mask_ratio`` of each masked array. None follows
        the server's values, round by round; a value given here wins over the server's, for a
        device with a thinner link than the others.
    rule : str, optional
        Uplink rule; None follows the server, which refuses a reply under another rule than its own.
    masked : collection of int, or callable, optional
        Positions, in the client's list of arrays, to upload sparsely; or a function of (position,
        shape) that decides. Default: every array of two or more dimensions except the first and
        the last of them (input layer and classifier) and 1x1 convolutions.

    Raises
    ------
    SettingsError
        At once if an argument is out of range; in a round if a position does not exist, or if a
        message or reply is not a classic client's.
    """
    if sparsity is not None:
        exact_fraction(sparsity, "sparsity")
    if mask_ratio is not None:
        exact_fraction(mask_ratio, "mask_ratio")
    own_rule = None if rule is None else canonical_rule(rule)
    return _SparseUplink(sparsity, mask_ratio, own_rule, masked)


@dataclass(frozen=True)
class _SparseUplink:
    """The mod itself: a message comes in, the client answers, a message goes out."""

    sparsity: FractionLike | None
    mask_ratio: FractionLike | None
    rule: str | None
    masked: MaskedArrays | None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type
        if kind == MessageTypeLegacy.GET_PROPERTIES:
            return _with_partition_id(call_next(message, context), context)
        if kind == MessageType.EVALUATE:
            return self._evaluate(message, context, call_next)
        if kind == MessageType.TRAIN:
            return self._train(message, context, call_next)
        return call_next(message, context)

    def _evaluate(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        with _classic_records("evaluate message"):
            came = compat.recorddict_to_evaluateins(message.content, keep_input=True)
        if is_payload(came.parameters.tensors):
            plan = RoundPlan.from_config(came.config)
            received = read_downlink(came.parameters.tensors, None, plan)
            message.content = compat.evaluateins_to_recorddict(
                EvaluateIns(ndarrays_to_parameters(received.arrays), came.config), keep_input=False
            )
        return call_next(message, context)

    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        with _classic_records("train message"):
            came = compat.recorddict_to_fitins(message.content, keep_input=True)
        plan = RoundPlan.from_config(came.config)
        if plan is None:
            raise SettingsError(
                "sparse_uplink got a round without ZeroFL's settings: wrap the server's strategy "
                "in strategies.ZeroFL, or remove the mod"
            )
        received = read_downlink(came.parameters.tensors, None, plan)
        if received.encoded:
            message.content = compat.fitins_to_recorddict(
                FitIns(ndarrays_to_parameters(received.arrays), came.config), keep_input=False
            )
        started = time.perf_counter()
        reply = call_next(message, context)
        seconds = time.perf_counter() - started
        if reply.has_error():
            return reply
        with _classic_records("reply to a train message"):
            result = compat.recorddict_to_fitres(reply.content, keep_input=True)
        if result.status.code != Code.OK or is_payload(result.parameters.tensors):
            return reply
        trained = parameters_to_ndarrays(result.parameters)
        result.metrics = {"train_seconds": seconds, **memory_metric(), **result.metrics}
        result.parameters = ndarrays_to_parameters(self._select(plan, received, trained))
        reply.content = compat.fitres_to_recorddict(result, keep_input=False)
        return reply

    def _select(self, plan: RoundPlan, received: Received, trained: list[Array]) -> list[Array]:
        """Encode what this client uploads of a trained model; arrays are named by position."""
        shapes = [array.shape for array in received.arrays]
        keep = uploaded_fraction(
            plan.sparsity if self.sparsity is None else self.sparsity,
            plan.mask_ratio if self.mask_ratio is None else self.mask_ratio,
        )
        # The server takes nothing but values where its mask is frozen.
        masked = {*_masked_positions(shapes, self.masked), *received.patterns}
        return write_reply(plan, received, trained, masked, rule=self.rule, keep=keep)


@contextmanager
def _classic_records(what: str) -> Iterator[None]:
    """Turn a missing record, which no classic client or strategy leaves out, into its meaning."""
    try:
        yield
    except KeyError as error:
        raise SettingsError(
            f"sparse_uplink got a {what} without the record {error}: so far the mod serves classic "
            "clients (NumPyClient or Client) under strategies.ZeroFL, and no app written for "
            "Flower's Message API (@app.train())"
        ) from error


def _masked_positions(shapes: list[tuple[int, ...]], masked: MaskedArrays | None) -> list[int]:
    if masked is None:
        matrices = [p for p, shape in enumerate(shapes) if len(shape) >= 2]
        return [p for p in matrices[1:-1] if len(shapes[p]) == 2 or np.prod(shapes[p][2:]) > 1]
    if callable(masked):
        return [p for p, shape in enumerate(shapes) if masked(p, shape)]
    if outside := sorted(p for p in masked if not 0 <= p < len(shapes)):
        raise SettingsError(
            f"masked names array positions {outside}, but the model has {len(shapes)} arrays"
        )
    return sorted(set(masked))


def _with_partition_id(reply: Message, context: Context) -> Message:
    """Add the node's partition id, which makes sampling and sums repeatable, to its properties."""
    partition_id = context.node_config.get("partition-id")
    if partition_id is None or reply.has_error():
        return reply
    with _classic_records("reply to a question for properties"):
        answered = compat.recorddict_to_getpropertiesres(reply.content)
    properties = {"partition-id": int(partition_id), **answered.properties}
    reply.content = compat.getpropertiesres_to_recorddict(
        GetPropertiesRes(Status(Code.OK, "Success"), properties)
    )
    return reply
