"""What the strategies' tests share."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import ndarrays_to_parameters

from adasplit_flwr.activation_payload import ActivationBatch
from strategies import adasplit_downlink, adasplit_replies
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.npy import read_npy


@pytest.fixture
def flower_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture Flower's log, whose logger does not propagate to where pytest listens."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        yield caplog
    finally:
        logger.removeHandler(caplog.handler)


@pytest.fixture
def double_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let activations and gradients travel in float64: what the payload's float32 rounds off."""
    kept: dict[int, Sequence[Any]] = {}

    def put(batches: Sequence[Any]) -> list[Array]:
        kept[len(kept)] = batches
        return [np.array(len(kept) - 1)]

    def take(arrays: Sequence[Any], **_: Any) -> Sequence[Any]:
        (array,) = arrays
        return kept[int(read_npy(array) if isinstance(array, bytes) else array)]

    def exact(number: int, values: torch.Tensor, labels: torch.Tensor) -> ActivationBatch:
        return ActivationBatch(number, values.numpy().copy(), labels.numpy())

    monkeypatch.setattr("adasplit_flwr.exchange.to_activation_batch", exact)
    monkeypatch.setattr("adasplit_flwr.client.encode_activations", lambda b, **_: put(b))
    monkeypatch.setattr(adasplit_replies, "decode_activations", take)
    monkeypatch.setattr("adasplit_flwr.exchange.decode_gradients", take)
    monkeypatch.setattr(
        adasplit_downlink,
        "gradient_tensors",
        lambda gradients, _: ndarrays_to_parameters(put(gradients)).tensors,
    )
