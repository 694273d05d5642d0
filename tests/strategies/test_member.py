"""A member forwards every call to Flower's proxy, and gives errors its client's name."""

from __future__ import annotations

import pytest
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    FitRes,
    GetParametersIns,
    GetPropertiesIns,
    Parameters,
    ReconnectIns,
    Status,
)

from strategies.member import Member, MemberFailedError
from tests.strategies.federation import Node
from zerofl_flwr.errors import ClientFailedError

NOTHING = FitIns(Parameters([], ""), {})


def test_members_forward_every_call() -> None:
    def train(ins: FitIns) -> FitRes:
        assert ins is NOTHING
        return result

    result = FitRes(Status(Code.OK, ""), Parameters([], ""), 1, {})
    node = Node(3, train, cid="33")
    member = Member(node, 3)
    assert (member.cid, member.node_id, str(member)) == ("33", 0, "client 3")
    assert member.properties is node.properties
    assert member.fit(NOTHING, None, None) is result
    assert member.evaluate(EvaluateIns(Parameters([], ""), {}), None, None).loss == 33
    asked = member.get_properties(GetPropertiesIns({}), None, None)
    assert asked.properties == {"partition-id": 3}
    assert member.get_parameters(GetParametersIns({}), None, None).parameters.tensors
    assert member.reconnect(ReconnectIns(None), None, None).reason == ""


@pytest.mark.parametrize(
    ("error", "reason"), [(ValueError("no disk"), "no disk"), (TimeoutError(), "TimeoutError")]
)
def test_errors_carry_the_clients_name(error: Exception, reason: str) -> None:
    def train(ins: FitIns) -> FitRes:
        raise error

    member = Member(Node(3, train), 3)
    with pytest.raises(MemberFailedError) as caught:
        member.fit(NOTHING, None, None)
    assert str(caught.value) == f"client 3: {reason}"
    assert (caught.value.partition_id, caught.value.reason) == (3, reason)
    assert isinstance(caught.value, ClientFailedError)
    assert caught.value.__cause__ is error
