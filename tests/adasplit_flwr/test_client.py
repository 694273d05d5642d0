"""AdaSplit's client: what it sends, and through Flower."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from flwr.app import Context, MessageType, RecordDict
from flwr.client import Client, ClientApp
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from torch import nn
from torch.utils.data import DataLoader

from adasplit_flwr import AdaSplitClient
from adasplit_flwr.weights_payload import named_arrays
from tests.adasplit_flwr.small_clients import (
    NEXT,
    PLAN,
    TEST,
    activations_in,
    bits,
    client_of,
    data_of,
    evaluated,
    fit,
    play,
    same_arrays,
    small_split,
    start_weights,
    state_in,
    uploaded_test,
)
from tests.zerofl_flwr.plain_client import instruction
from zerofl_flwr.errors import SettingsError


def test_without_upload_nothing_is_sent() -> None:
    silent = dataclasses.replace(PLAN, upload=False, upload_weights=False)
    arrays, samples, metrics = fit(client_of(3, RecordDict()), silent, start_weights())
    assert (arrays, samples, metrics["activation_arrays"]) == ([], 8, 0)
    assert float(metrics["train_loss"]) > 0


def test_activations_travel_in_half_precision_if_asked() -> None:
    plans = [dataclasses.replace(PLAN, precision=p) for p in ("float32", "float16")]
    batches = [
        activations_in(fit(client_of(3, RecordDict()), plan, start_weights()), [4, 4])
        for plan in plans
    ]
    for full, half in zip(*batches, strict=True):
        rounded = full.activations.astype(np.float16).astype(np.float32)
        assert np.array_equal(half.activations, rounded)
    with pytest.raises(SettingsError, match="unknown precision 'float8'"):
        fit(
            client_of(3, RecordDict()),
            dataclasses.replace(PLAN, precision="float8"),
            start_weights(),
        )


def test_flower_carries_messages_and_state() -> None:
    context = Context(
        run_id=1, node_id=9, node_config={"partition-id": 3}, state=RecordDict(), run_config={}
    )

    def client_fn(given: Context) -> Client:
        return client_of(int(given.node_config["partition-id"]), given.state).to_client()

    app = ClientApp(client_fn=client_fn)
    replies = []
    for server_round in (1, 2):
        weights = start_weights() if server_round == 1 else []
        plan = dataclasses.replace(
            PLAN,
            server_round=server_round,
            state_round=server_round - 1,
            weight_arrays=len(weights),
        )
        ins = FitIns(ndarrays_to_parameters(weights), {**plan.to_config()})
        message = instruction(compat.fitins_to_recorddict(ins, True), MessageType.TRAIN)
        result = compat.recorddict_to_fitres(app(message, context).content, keep_input=True)
        replies.append(parameters_to_ndarrays(result.parameters))
        assert result.num_examples == 8
    assert same_arrays(replies[1], play(RecordDict())[0])
    test = dataclasses.replace(TEST, upload=True)
    evaluate_ins = EvaluateIns(ndarrays_to_parameters([]), {**test.to_config()})
    content = compat.evaluateins_to_recorddict(evaluate_ins, True)
    answer = app(instruction(content, MessageType.EVALUATE), context)
    evaluation = compat.recorddict_to_evaluateres(answer.content)
    assert len(uploaded_test((evaluation.loss, evaluation.num_examples, evaluation.metrics))) == 5


def test_who_it_is_and_what_it_has() -> None:
    split = small_split()
    client = client_of(5, RecordDict(), split=split)
    assert client.get_properties({}) == {"partition-id": 5}
    expected = named_arrays({"client": split.client, "head": split.head})
    assert same_arrays(client.get_parameters({}), list(expected.values()))


def test_threads_are_limited_when_the_client_is_built() -> None:
    before = torch.get_num_threads()
    try:
        client_of(3, RecordDict(), threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_clients_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"must be a SplitModel, .*, not a Linear"):
        AdaSplitClient(
            nn.Linear(2, 2),  # type: ignore[arg-type]
            [],
            partition_id=0,
            state=RecordDict(),
        )
    with pytest.raises(SettingsError, match="at least 1 thread"):
        client_of(3, RecordDict(), threads=0)
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="device 'cuda' was asked for"):
            client_of(3, RecordDict(), device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_a_client_trains_resumes_and_tests() -> None:
    state = RecordDict()
    play(state, device="cuda")
    # Dropout's numbers are others on CUDA, so that only two runs on it are alike.
    again = RecordDict()
    play(again, device="cuda")
    assert bits(state_in(state).arrays) == bits(state_in(again).arrays)
    assert evaluated(client_of(3, state, device="cuda"))[1] == 22
    loader = DataLoader(data_of(3), batch_size=4)
    assert fit(client_of(3, state, device="cuda", train_batches=loader), NEXT)[1] == 8
