"""What a training message's bytes are: activations, labels, gradients, weights, indices, protocol.

A message's arrays are payloads (:mod:`zerofl_flwr.payload`), one behind the other, and plain
arrays, which are weights. What a payload's arrays are, its header says:

===========  =======================================================================================
category     holds the data of
===========  =======================================================================================
activations  the entry ``activations`` of a payload of batches
labels       the entry ``labels`` of one
gradients    the entry ``gradients`` of one
weights      every other array of numbers: weights, differences of weights, a model's buffers,
             control variates
indices      ``indices`` and ``indptr`` of any entry that travels as CSR
protocol     everything else: the headers of payloads and of ``.npy``, ids and sizes of batches,
             scalars, the protobuf around it all, and what cannot be read
===========  =======================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from adasplit_flwr.batch_payload import BATCH_COUNTERS
from zerofl_flwr.errors import PayloadError
from zerofl_flwr.payload import is_payload, read_npy
from zerofl_flwr.payload_header import ARRAY_COUNTS, LayerHeader, read_header

CATEGORIES = ("activations", "labels", "gradients", "weights", "indices", "protocol")
_OF_BATCHES = ("activations", "labels", "gradients")
_COUNTED = ("activations", "gradients", "weights")
COUNTED_BYTES = 4


@dataclass(frozen=True)
class Breakdown:
    """Bytes of a message by category; they add up to the message's.

    Parameters
    ----------
    activations, labels, gradients, weights, indices, protocol : int
        See :mod:`strategies.traffic`.
    counted : int
        The message as AdaSplit's authors count: four bytes for each number that is not zero, of
        floats among activations, gradients and weights, and nothing else. A float16 or float64
        counts as four bytes too.
    """

    activations: int = 0
    labels: int = 0
    gradients: int = 0
    weights: int = 0
    indices: int = 0
    protocol: int = 0
    counted: int = 0

    def by_category(self) -> dict[str, int]:
        """Return the six categories' bytes, in their order."""
        return {category: getattr(self, category) for category in CATEGORIES}


NO_BYTES = Breakdown()
"""Of no message."""


def break_down(tensors: Sequence[bytes], message_bytes: int) -> Breakdown:
    """Say what a message's bytes are.

    Values are looked at once, to count those that are not zero; nothing is decoded or copied.

    Parameters
    ----------
    tensors : sequence of bytes
        The message's arrays, each as ``.npy`` bytes. Nothing about them is trusted: whatever cannot
        be read is protocol, and so is all that follows the header of a payload that is incomplete.
    message_bytes : int
        Bytes of the whole serialized message.

    Returns
    -------
    Breakdown
        Adds up to `message_bytes`.
    """
    found: Counter[str] = Counter()
    for tensor, category in zip(tensors, _categories(tensors), strict=False):
        if category == "protocol":
            continue
        try:
            array = read_npy(tensor)
        except PayloadError:
            continue
        found[category] += array.nbytes
        if category in _COUNTED and array.dtype.kind == "f":
            found["counted"] += COUNTED_BYTES * int(np.count_nonzero(array != 0))
    data = sum(size for name, size in found.items() if name != "counted")
    return Breakdown(**found, protocol=message_bytes - data)


def _categories(tensors: Sequence[bytes]) -> Iterator[str]:
    """Yield the category of each array's data; an array without one, at the end, is protocol."""
    position = 0
    while position < len(tensors):
        header, position = tensors[position], position + 1
        if not is_payload([header]):
            yield "weights"
            continue
        yield "protocol"
        try:
            layers, _ = read_header(read_npy(header), sender=None)
        except PayloadError:
            return
        announced = _announced(layers)
        if len(announced) > len(tensors) - position:
            return
        yield from announced
        position += len(announced)


def _announced(layers: Sequence[LayerHeader]) -> list[str]:
    """Return the categories of a payload's arrays, in their order."""
    of_batches = [layer.name for layer in layers[-2:]] == list(BATCH_COUNTERS)
    categories: list[str] = []
    for layer in layers:
        data = "weights"
        if of_batches:
            data = layer.name if layer.name in _OF_BATCHES else "protocol"
        categories += [data, "indices", "indices"][: ARRAY_COUNTS[layer.encoding]]
    return categories
