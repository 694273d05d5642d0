"""An ordinary Flower client, and messages to it as Flower builds them, for tests of the mod."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import numpy as np
from flwr.app import Context, Message, MessageType, Metadata, RecordDict
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import (
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.compat.common import recorddict_compat as compat
from numpy.typing import NDArray

from zerofl_flwr.payload import (
    Entry,
    Payload,
    SparseArray,
    TensorSpec,
    decode,
    encode,
)
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.uplink import uplink_entries

Arrays = list[NDArray[Any]]

PLAN = RoundPlan(
    server_round=2,
    sparsity=0.8,
    mask_ratio=0.1,
    activation_sparsity=0.8,
    gradient_sparsity=0.0,
    topk_period=10,
    rule="top-k-weights",
    frozen=False,
)

# A convolutional net as numpy clients see it: input layer, 3x3, 1x1, linear, classifier, biases,
# batch norm's statistics and counter.
SHAPES = [(8, 1, 3, 3), (8,), (8, 8, 3, 3), (8, 8, 1, 1), (), (30, 20), (30,), (10, 30)]
MASKED = [2, 5]


def model_arrays(seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(size=shape).astype(np.float32) for shape in SHAPES]
    arrays[4] = np.array(seed, np.int64)
    return arrays


BEFORE, AFTER = model_arrays(0), model_arrays(1)
SPECS = [TensorSpec(array.shape, array.dtype) for array in BEFORE]


class PlainClient(NumPyClient):
    """Knows nothing of ZeroFL: takes dense arrays, returns dense arrays, notes what it got."""

    def __init__(self, reply: Arrays | None = None) -> None:
        self.reply = AFTER if reply is None else reply
        self.got: Arrays = []
        self.config: dict[str, Scalar] = {}

    def fit(
        self, parameters: Arrays, config: dict[str, Scalar]
    ) -> tuple[Arrays, int, dict[str, Scalar]]:
        self.got, self.config = parameters, config
        return self.reply, 17, {"train_loss": 0.5}

    def evaluate(
        self, parameters: Arrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        self.got, self.config = parameters, config
        return 1.5, 9, {"accuracy": 0.25}


def instruction(content: RecordDict, message_type: str) -> Message:
    """Build what the server sends, as Flower does, but without a server."""
    metadata = Metadata(
        run_id=1,
        message_id="a message",
        src_node_id=1,
        dst_node_id=9,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=3600.0,
        message_type=message_type,
    )
    return Message(content, metadata=metadata)  # type: ignore[call-overload,no-any-return]


def answer(
    client: NumPyClient | Client,
    mod: Any,
    content: RecordDict,
    message_type: str,
    node_config: dict[str, Any] | None = None,
) -> Message:
    """Send a message through a real ClientApp with the mod."""
    context = Context(
        run_id=1,
        node_id=9,
        node_config={"partition-id": 4} if node_config is None else node_config,
        state=RecordDict(),
        run_config={},
    )
    app = ClientApp(
        client_fn=lambda _: client.to_client(),
        mods=[mod],
    )
    return app(instruction(content, message_type), context)


def fit(
    client: NumPyClient | Client,
    mod: Any,
    parameters: Parameters,
    config: dict[str, Scalar] | None = None,
) -> FitRes:
    ins = FitIns(parameters, PLAN.to_config() if config is None else config)  # type: ignore[arg-type]
    reply = answer(client, mod, compat.fitins_to_recorddict(ins, True), MessageType.TRAIN)
    return compat.recorddict_to_fitres(reply.content, keep_input=True)


def uploaded(result: FitRes, pattern_sizes: dict[int, int] | None = None) -> Payload:
    tensors = result.parameters.tensors
    return decode(tensors, SPECS, sender="client 4", pattern_sizes=pattern_sizes)


def expected_arrays(
    masked: list[int], plan: RoundPlan = PLAN, keep: str = "0.3", before: Arrays = BEFORE
) -> Arrays:
    entries = uplink_entries(
        [str(position) for position in range(len(SHAPES))],
        before,
        AFTER,
        masked={str(position) for position in masked},
        rule=plan.rule,
        keep=Decimal(keep),
    )
    meta = {"round": plan.server_round, "masked": ",".join(map(str, masked))}
    return encode(entries, meta)  # type: ignore[arg-type]


def bits(arrays: Arrays) -> list[tuple[Any, ...]]:
    return [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def downlink() -> tuple[Parameters, Arrays]:
    """Give a sparse global model, and what it stands for."""
    dense = [array.copy() for array in BEFORE]
    for position in MASKED:
        dense[position][np.abs(dense[position]) < 1] = 0
    entries = [
        Entry(str(p), SparseArray.from_dense(array) if p in MASKED else array)
        for p, array in enumerate(dense)
    ]
    return ndarrays_to_parameters(encode(entries, {"round": PLAN.server_round})), dense
