"""Where a run's first model comes from."""

from __future__ import annotations

import pytest
from flwr.common import Code, Status, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

from strategies.cohort import Cohort
from strategies.initial_model import initial_model
from tests.strategies.dense_federation import PARAMETERS
from tests.strategies.federation import Node, managed, same_bits, toy
from zerofl_flwr.errors import ClientFailedError


def test_the_strategys_own_model_comes_first_and_then_the_first_partitions() -> None:
    nodes = [Node(7, cid="2"), Node(3, cid="5")]
    cohort = Cohort(0).at(managed(nodes), 0, "initialize")
    assert initial_model(FedAvg(initial_parameters=PARAMETERS), cohort) is PARAMETERS
    told = initial_model(FedAvg(), cohort)
    assert same_bits(parameters_to_ndarrays(told), toy(seed=105).values)
    assert [node.time_to_tell_model for node in nodes] == [None, 600]


def test_a_client_that_does_not_tell_is_an_error() -> None:
    node = Node(3, status=Status(Code.OK, ""))
    cohort = Cohort(0).at(managed([node]), 0, "initialize")
    node.status = Status(Code.GET_PARAMETERS_NOT_IMPLEMENTED, "what model?")
    with pytest.raises(ClientFailedError, match="client 3 did not tell the initial model: what mo"):
        initial_model(FedAvg(), cohort)
