"""The client mod: who a client is, what it refuses, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.client import Client, NumPyClient
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    GetParametersIns,
    GetPropertiesIns,
    MessageTypeLegacy,
    Scalar,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat as compat

from tests.zerofl_flwr.plain_client import (
    AFTER,
    BEFORE,
    PLAN,
    Arrays,
    PlainClient,
    answer,
    bits,
    fit,
    instruction,
)
from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.mod import sparse_uplink


class TalkativeClient(PlainClient):
    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        return {"battery": 0.5}


class SelfNamingClient(PlainClient):
    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        return {"partition-id": 77}


@pytest.mark.parametrize(
    ("client", "node_config", "properties"),
    [
        (PlainClient(), {"partition-id": 4}, {"partition-id": 4}),
        (TalkativeClient(), {"partition-id": 4}, {"battery": 0.5, "partition-id": 4}),
        (SelfNamingClient(), {"partition-id": 4}, {"partition-id": 77}),
        (TalkativeClient(), {}, {"battery": 0.5}),
    ],
    ids=["no properties", "own properties", "own partition", "unknown partition"],
)
def test_the_partition_is_among_the_properties(
    client: NumPyClient, node_config: dict[str, Any], properties: dict[str, Any]
) -> None:
    content = compat.getpropertiesins_to_recorddict(GetPropertiesIns({}))
    kind = MessageTypeLegacy.GET_PROPERTIES
    reply = answer(client, sparse_uplink(), content, kind, node_config)
    result = compat.recorddict_to_getpropertiesres(reply.content)
    assert result.status.code == Code.OK
    assert result.properties == properties


class ClientWithParameters(PlainClient):
    def get_parameters(self, config: dict[str, Scalar]) -> Arrays:
        return BEFORE


def test_other_messages_pass_through() -> None:
    content = compat.getparametersins_to_recorddict(GetParametersIns({}))
    kind = MessageTypeLegacy.GET_PARAMETERS
    reply = answer(ClientWithParameters(), sparse_uplink(), content, kind)
    result = compat.recorddict_to_getparametersres(reply.content, keep_input=True)
    assert bits(parameters_to_ndarrays(result.parameters)) == bits(BEFORE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparsity": 1.5}, "sparsity must lie between 0 and 1, got 1.5"),
        ({"mask_ratio": -1}, "mask_ratio must lie between 0 and 1"),
        ({"rule": "top"}, "unknown uplink rule 'top'; did you mean"),
    ],
)
def test_a_bad_argument_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        sparse_uplink(**arguments)


def test_a_position_that_does_not_exist_is_refused_in_the_round() -> None:
    message = r"masked names array positions \[-1, 8\], but the model has 8 arrays"
    with pytest.raises(SettingsError, match=message):
        fit(PlainClient(), sparse_uplink(masked=[2, 8, -1]), ndarrays_to_parameters(BEFORE))


def test_a_round_without_a_plan_is_refused() -> None:
    with pytest.raises(SettingsError, match="wrap the server's strategy in"):
        fit(PlainClient(), sparse_uplink(), ndarrays_to_parameters(BEFORE), {})


def test_a_client_that_returns_another_number_of_arrays_is_refused() -> None:
    client = PlainClient(reply=AFTER[:-1])
    with pytest.raises(PayloadError, match="returned 7 arrays for a model of 8"):
        fit(client, sparse_uplink(), ndarrays_to_parameters(BEFORE))


def test_a_client_that_returns_another_shape_is_refused_by_position() -> None:
    reply = [*AFTER[:7], AFTER[7].T]
    with pytest.raises(PayloadError, match="layer 7, field shape: was"):
        fit(PlainClient(reply), sparse_uplink(), ndarrays_to_parameters(BEFORE))


class FailingClient(Client):
    def fit(self, ins: FitIns) -> FitRes:
        status = Status(Code.FIT_NOT_IMPLEMENTED, "the battery is empty")
        return FitRes(status, ndarrays_to_parameters(BEFORE), 0, {})


def test_a_reply_that_is_no_success_passes_through() -> None:
    result = fit(FailingClient(), sparse_uplink(), ndarrays_to_parameters(BEFORE))
    assert result.status.message == "the battery is empty"
    assert bits(parameters_to_ndarrays(result.parameters)) == bits(BEFORE)


def classic_instruction(kind: str) -> Message:
    """Write a message of the classic API: a round's training, or the question for properties."""
    if kind == MessageType.TRAIN:
        ins = FitIns(ndarrays_to_parameters(BEFORE), PLAN.to_config())  # type: ignore[arg-type]
        return instruction(compat.fitins_to_recorddict(ins, True), kind)
    return instruction(compat.getpropertiesins_to_recorddict(GetPropertiesIns({})), kind)


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageTypeLegacy.GET_PROPERTIES])
def test_an_error_from_further_down_passes_through(kind: str) -> None:
    def broken(message: Message, context: Context) -> Message:
        return Message(Error(code=3, reason="out of memory"), reply_to=message)

    context = Context(1, 9, {"partition-id": 4}, RecordDict(), {})
    reply = sparse_uplink()(classic_instruction(kind), context, broken)
    assert reply.error.reason == "out of memory"


def message_api_records() -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(BEFORE), "config": ConfigRecord({"lr": 0.1})})


@pytest.mark.parametrize(
    ("kind", "record"),
    [(MessageType.TRAIN, "fitins.parameters"), (MessageType.EVALUATE, "evaluateins.parameters")],
)
def test_a_message_for_another_api_is_refused(kind: str, record: str) -> None:
    def app(message: Message, context: Context) -> Message:
        raise AssertionError("the message must not come this far")

    context = Context(1, 9, {}, RecordDict(), {})
    expected = rf"a {kind} message without the record '{record}': .* classic clients"
    with pytest.raises(SettingsError, match=expected):
        sparse_uplink()(instruction(message_api_records(), kind), context, app)


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageTypeLegacy.GET_PROPERTIES])
def test_a_reply_of_another_api_is_refused(kind: str) -> None:
    def app(message: Message, context: Context) -> Message:
        return Message(message_api_records(), reply_to=message)

    context = Context(1, 9, {"partition-id": 4}, RecordDict(), {})
    with pytest.raises(SettingsError, match=r"a reply to a .* without the record .* classic"):
        sparse_uplink()(classic_instruction(kind), context, app)
