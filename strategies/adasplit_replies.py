"""Check the replies of an AdaSplit round before any of them is learned from, and decode them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flwr.common import FitRes

from adasplit_flwr.activation_payload import ActivationBatch, decode_activations
from adasplit_flwr.plans import ExchangePlan
from strategies.adasplit_downlink import Asked
from strategies.adasplit_weights import ClientWeights
from strategies.answers import Answer, Refusal, check_examples, whole_metric
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.model_arrays import Array

MAX_ITERATIONS = 10**6
"""Batches of one exchange; an epoch of a client's own data has far fewer."""


@dataclass(frozen=True)
class CutShapes:
    """What passes the cut.

    Parameters
    ----------
    activation : tuple of int
        Shape of one sample's activation.
    num_classes : int
        Labels are below it.
    max_batch_size : int
        Most samples in a batch.
    max_upload_mb : float
        Most megabytes that the activations of one message may take once they are dense in float32:
        bounds what a reply can make the server allocate.
    """

    activation: tuple[int, ...]
    num_classes: int
    max_batch_size: int
    max_upload_mb: float

    @property
    def max_samples(self) -> int:
        """Most samples of one message, exact: .06 megabytes are 3000 samples of five numbers."""
        return int(Fraction(str(self.max_upload_mb)) * 10**6 / dense_bytes(1, self.activation))

    def check_upload(self, num_examples: int, sender: str) -> None:
        """Refuse a reply that speaks of more samples than one message may bring.

        Raises
        ------
        PayloadError
            Naming the sender and the field ``num_examples``.
        """
        if num_examples > self.max_samples:
            megabytes = dense_bytes(num_examples, self.activation) / 10**6
            reason = (
                f"activations of {num_examples} samples take {megabytes:g} MB in float32; "
                f"max_upload_mb is {self.max_upload_mb:g}, enough for {self.max_samples} samples"
            )
            raise PayloadError(reason, sender=sender, field="num_examples")

    def decode(
        self, arrays: Sequence[bytes], *, sender: str, server_round: int, batches: int
    ) -> list[ActivationBatch]:
        """Decode activations of so many batches, numbered from 0.

        Raises
        ------
        PayloadError
            Naming the sender, the entry and the field.
        """
        return decode_activations(
            arrays,
            sender=sender,
            server_round=server_round,
            activation_shape=self.activation,
            num_classes=self.num_classes,
            batch_ids=range(batches),
            max_batch_size=self.max_batch_size,
            max_samples=self.max_samples,
        )


@dataclass(frozen=True, eq=False)
class Exchange:
    """A reply that passed its checks.

    Parameters
    ----------
    answer : Answer
        The reply.
    batches : list of ActivationBatch
        What was uploaded, in order; empty where nothing was asked for. Dense float32 activations
        are views of the reply; those that came as CSR or float16 are copies.
    weights : dict of str to ndarray
        Float arrays of client part and head, by name; empty where they were not asked for.
    """

    answer: Answer[FitRes]
    batches: list[ActivationBatch]
    weights: dict[str, Array]

    @property
    def client(self) -> int:
        """The client's partition id."""
        return self.answer.member.partition_id


class ExchangeChecker:
    """Holds a round's replies against the plans that the clients were sent.

    Parameters
    ----------
    asked : Asked
        Who was sent which plan.
    shapes : CutShapes
        Of the activations.
    weights : ClientWeights
        Decodes client parts.
    most_samples : callable, optional
        With a budget, tells by partition id what a client's exchange takes: it pays for no more.
    """

    def __init__(
        self,
        asked: Asked[ExchangePlan],
        shapes: CutShapes,
        weights: ClientWeights,
        most_samples: Callable[[int], int] | None = None,
    ) -> None:
        self._asked = asked
        self._shapes = shapes
        self._weights = weights
        self._most_samples = most_samples

    def split(self, replies: Sequence[Answer[FitRes]]) -> tuple[list[Exchange], list[Refusal]]:
        """Decode the good replies and say why the others are refused, both in their order."""
        good: list[Exchange] = []
        refused: list[Refusal] = []
        for reply in replies:
            try:
                good.append(self.decode(reply))
            except PayloadError as error:
                refused.append(Refusal(reply.member.partition_id, str(error)))
        return good, refused

    def decode(self, reply: Answer[FitRes]) -> Exchange:
        """Decode one reply.

        Raises
        ------
        PayloadError
            Naming the client, the layer and the field.
        """
        sender, result = str(reply.member), reply.result
        plan = self._asked.plan_of(reply.member)
        if not plan.finish:
            check_examples(result.num_examples, sender)
            self._check_paid(result.num_examples, reply.member.partition_id, sender)
        came = result.metrics.get("round")
        if type(came) is not int or came != plan.server_round:
            reason = f"a reply to round {plan.server_round} expected, to {reprlib.repr(came)} came"
            raise PayloadError(reason, sender=sender, field="round")
        iterations = self._iterations(result, plan, sender)
        if plan.upload:
            self._shapes.check_upload(result.num_examples, sender)
        tensors = result.parameters.tensors
        uploaded = self._uploaded_arrays(result, plan, sender)
        batches: list[ActivationBatch] = []
        if plan.upload:
            batches = self._shapes.decode(
                tensors[:uploaded],
                sender=sender,
                server_round=plan.server_round,
                batches=iterations,
            )
            check_samples(batches, result.num_examples, sender)
        weights: dict[str, Array] = {}
        if plan.upload_weights:
            weights = self._weights.decode(
                tensors[uploaded:], sender=sender, server_round=plan.server_round
            )
        elif len(tensors) > uploaded:
            reason = f"{len(tensors) - uploaded} arrays came that nobody asked for"
            raise PayloadError(reason, sender=sender, field="arrays")
        return Exchange(reply, batches, weights)

    def _check_paid(self, num_examples: int, client: int, sender: str) -> None:
        if self._most_samples is None or num_examples <= (most := self._most_samples(client)):
            return
        reason = f"{num_examples} samples, but by batch_sizes the exchange has {most}"
        raise PayloadError(reason, sender=sender, field="num_examples")

    def _iterations(self, result: FitRes, plan: ExchangePlan, sender: str) -> int:
        if plan.finish:
            _check_nothing_taken(result, sender)
            return 0
        iterations = whole_metric(result.metrics, "iterations", sender, 1, MAX_ITERATIONS)
        fault = ""
        if plan.iterations and iterations != plan.iterations:
            fault = f"{plan.iterations} batches were asked for, {iterations} taken"
        elif iterations > result.num_examples:
            fault = f"{iterations} batches cannot have {result.num_examples} samples together"
        if fault:
            raise PayloadError(fault, sender=sender, field="iterations")
        largest = iterations * self._shapes.max_batch_size
        if result.num_examples > largest:
            reason = (
                f"{result.num_examples} samples in {iterations} batches: more than "
                f"max_batch_size, {self._shapes.max_batch_size}, in each"
            )
            raise PayloadError(reason, sender=sender, field="num_examples")
        return iterations

    def _uploaded_arrays(self, result: FitRes, plan: ExchangePlan, sender: str) -> int:
        there = len(result.parameters.tensors)
        uploaded = whole_metric(result.metrics, "activation_arrays", sender, 0, there)
        fault = ""
        if uploaded and not plan.upload:
            fault = "activations came that nobody asked for: the client is in the wrong phase"
        elif plan.upload and not uploaded:
            fault = "activations were asked for, and none came: the client is in the wrong phase"
        if fault:
            raise PayloadError(fault, sender=sender, field="activation_arrays")
        return uploaded


def dense_bytes(samples: int, activation: tuple[int, ...]) -> int:
    """Return the bytes that samples' activations take in float32; an empty one counts as a number.

    Parameters
    ----------
    samples : int
        How many.
    activation : tuple of int
        Shape of one sample's activation.
    """
    return samples * 4 * max(1, math.prod(activation))


def check_samples(batches: Sequence[ActivationBatch], num_examples: int, sender: str) -> None:
    """Refuse batches that do not hold the samples that a reply speaks of."""
    samples = sum(len(batch.labels) for batch in batches)
    if samples != num_examples:
        raise PayloadError(
            f"num_examples is {num_examples}, but the batches have {samples} samples",
            sender=sender,
            field="num_examples",
        )


def _check_nothing_taken(result: FitRes, sender: str) -> None:
    for field, came in (
        ("num_examples", result.num_examples),
        ("iterations", result.metrics.get("iterations")),
    ):
        if type(came) is not int or came:
            reason = f"0 expected in a round that takes no batch, {reprlib.repr(came)} came"
            raise PayloadError(reason, sender=sender, field=field)
