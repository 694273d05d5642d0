"""Replies of AdaSplit's clients with one fault each, and what their refusal has to name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.common import FitRes, Parameters, Scalar, ndarrays_to_parameters

from adasplit_flwr.activation_payload import ActivationBatch, encode_activations
from tests.strategies.adasplit_federation import BATCH, CLASSES, CUT
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.payload import Entry, encode

Spoil = Callable[[FitRes], FitRes]


@dataclass(frozen=True)
class Fault:
    """How to spoil a reply of three batches of four to round 1, and what its refusal names."""

    field: str
    layer: str | None
    says: str
    spoil: Spoil


def metrics(**values: Scalar | None) -> Spoil:
    """Replace metrics; None removes one."""

    def spoil(result: FitRes) -> FitRes:
        changed = {**result.metrics, **values}
        return replace(result, metrics={k: v for k, v in changed.items() if v is not None})

    return spoil


def examples(count: Any) -> Spoil:
    return lambda result: replace(result, num_examples=count)


def tensors(change: Callable[[list[bytes]], list[bytes]]) -> Spoil:
    def spoil(result: FitRes) -> FitRes:
        changed = change(list(result.parameters.tensors))
        return replace(result, parameters=Parameters(changed, "numpy.ndarray"))

    return spoil


def batches(
    sizes: Sequence[int] = (BATCH,) * 3,
    *,
    ids: Sequence[int] | None = None,
    shape: tuple[int, ...] = (CUT,),
    label: int = 0,
) -> list[ActivationBatch]:
    """Make batches that have nothing to do with what the client trained on."""
    return [
        ActivationBatch(
            index if ids is None else ids[index],
            np.ones((size, *shape), np.float32),
            np.full(size, label, np.int64),
        )
        for index, size in enumerate(sizes)
    ]


def uploaded(
    *args: Any, server_round: int = 1, classes: int = CLASSES, count: int | None = None, **kw: Any
) -> Spoil:
    """Put other batches in place of the upload; `count` claims so many samples."""
    arrays = encode_activations(
        batches(*args, **kw), server_round=server_round, num_classes=classes
    )
    return replaced(arrays, count)


def replaced(arrays: Sequence[Array], count: int | None = None) -> Spoil:
    def spoil(result: FitRes) -> FitRes:
        return replace(
            result,
            parameters=ndarrays_to_parameters(list(arrays)),
            num_examples=result.num_examples if count is None else count,
            metrics={**result.metrics, "activation_arrays": len(arrays)},
        )

    return spoil


def with_value(value: float) -> Spoil:
    """Put a value among the activations, past the encoder that would refuse it."""
    arrays = encode_activations(batches(), server_round=1, num_classes=CLASSES)
    spoiled = arrays[1].copy()
    spoiled[0, 0] = value
    return replaced([arrays[0], spoiled, *arrays[2:]])


def entries(**changed: Array) -> Spoil:
    """Put other arrays in place of entries, ``batch_ids`` for ``batch-ids``, past the encoder.

    The header tells their types and shapes as they are.
    """
    known = ("activations", "labels", "batch_ids", "batch_sizes")
    _, *arrays = encode_activations(batches(), server_round=1, num_classes=CLASSES)
    came = dict(zip(known, arrays, strict=True)) | changed
    made = [Entry(name.replace("_", "-"), array) for name, array in came.items()]
    return replaced(encode(made, {"round": 1, "precision": "float32"}))


def labels(*first: int, dtype: type[np.integer[Any]] = np.uint8) -> Array:
    """Give labels for three batches, all 0 but for the first ones."""
    made: Array = np.zeros(3 * BATCH, dtype)
    made[: len(first)] = first
    return made


UPLOAD_FAULTS = {
    "an earlier round": Fault(
        "round", None, "a reply to round 1 expected, to 0 came", metrics(round=0)
    ),
    "no round": Fault("round", None, "to None came", metrics(round=None)),
    "a round that is no number": Fault("round", None, "to True came", metrics(round=True)),
    "no samples": Fault("num_examples", None, "num_examples is 0", examples(0)),
    "samples that are no number": Fault("num_examples", None, "num_examples is 1.5", examples(1.5)),
    "more samples than were uploaded": Fault(
        "num_examples", None, "num_examples is 13, but the batches have 12 samples", examples(13)
    ),
    "more samples than batches can have": Fault(
        "num_examples", None, "more than max_batch_size, 1024, in each", examples(3 * 1024 + 1)
    ),
    "no iterations": Fault("iterations", None, "got None", metrics(iterations=None)),
    "no batch": Fault("iterations", None, "from 1 to 1000000, got 0", metrics(iterations=0)),
    "endless iterations": Fault("iterations", None, "got 1000001", metrics(iterations=10**6 + 1)),
    "iterations that are no number": Fault("iterations", None, "got 3.0", metrics(iterations=3.0)),
    "more iterations than samples": Fault(
        "iterations", None, "13 batches cannot have 12 samples together", metrics(iterations=13)
    ),
    "more iterations than batches": Fault(
        "data", "batch-ids", "batch 3 is missing", metrics(iterations=4)
    ),
    "fewer iterations than batches": Fault(
        "data", "batch-ids", "batch 2 was not asked for", metrics(iterations=2)
    ),
    "no number of arrays": Fault(
        "activation_arrays", None, "got None", metrics(activation_arrays=None)
    ),
    "a negative number of arrays": Fault(
        "activation_arrays", None, "got -1", metrics(activation_arrays=-1)
    ),
    "more arrays than came": Fault(
        "activation_arrays",
        None,
        "expected a whole number from 0 to",
        lambda r: metrics(activation_arrays=len(r.parameters.tensors) + 1)(r),
    ),
    "no upload": Fault(
        "activation_arrays",
        None,
        "activations were asked for, and none came: the client is in the wrong phase",
        lambda r: metrics(activation_arrays=0)(tensors(lambda _: [])(r)),
    ),
    "arrays that nobody asked for": Fault(
        "arrays", None, "2 arrays came that nobody asked for", tensors(lambda t: [*t, *t[:2]])
    ),
    "an array is missing": Fault(
        "arrays",
        None,
        "the header announces 4 arrays, 3 came",
        lambda r: metrics(activation_arrays=4)(tensors(lambda t: t[:-1])(uploaded()(r))),
    ),
    "no payload": Fault("header", None, "", replaced([np.zeros(3, np.float32)])),
    "bytes that are no array": Fault("header", None, "", tensors(lambda t: [b"nonsense", *t[1:]])),
    "activations of another round": Fault(
        "round", None, "round 1 expected, 2 came", uploaded(server_round=2)
    ),
    "activations of another cut": Fault(
        "shape", "activations", "samples of shape (5,) expected", uploaded(shape=(4,))
    ),
    "labels of more classes": Fault(
        "dtype", "labels", "uint8 expected, uint16 came", uploaded(classes=300)
    ),
    "a label that is no class": Fault(
        "data", "labels", "has class 3; there are 3 classes", uploaded(label=3, classes=4)
    ),
    "a label far out of range": Fault(
        "data", "labels", "sample 1 has class 255; there are 3", entries(labels=labels(2, 255))
    ),
    "a label below 0": Fault(
        "dtype", "labels", "uint8 expected, int8 came", entries(labels=labels(-1, dtype=np.int8))
    ),
    "activations in float64": Fault(
        "dtype",
        "activations",
        "float32 expected, float64 came",
        entries(activations=np.ones((3 * BATCH, CUT), np.float64)),
    ),
    "a batch twice": Fault(
        "data",
        "batch-ids",
        "batch 1 came twice",
        entries(batch_ids=np.array([0, 1, 1], np.uint32)),
    ),
    "a batch too far": Fault(
        "data", "batch-ids", "batch 3 was not asked for", uploaded(ids=(0, 1, 3))
    ),
    "another order": Fault("data", "batch-ids", "the order", uploaded(ids=(1, 0, 2))),
    "a batch that is too large": Fault(
        "data", "batch-sizes", "1 to 1024 samples", uploaded((1025, 1, 1), count=1027)
    ),
    "NaN": Fault("data", "activations", "not finite", with_value(np.nan)),
    "infinity": Fault("data", "activations", "not finite", with_value(np.inf)),
}
