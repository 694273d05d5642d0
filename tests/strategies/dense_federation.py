"""Nodes that reply with whole arrays, and what strategies make of one bad reply among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flwr.common import (
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.server import Server
from flwr.server.strategy import Strategy

from adasplit_flwr.client_resume import lost_state
from strategies.answers import Answer
from strategies.member import Member, MemberFailedError
from strategies.replies import Failure
from tests.strategies.federation import OK, Node, f32, managed, trained
from zerofl_flwr.model_arrays import Array

START = [f32([[1.0, 2.0], [3.0, 4.0]]), f32([0.5, -0.5])]
NAMES = ["fc.weight", "fc.bias"]
PARAMETERS = ndarrays_to_parameters(START)
EXAMPLES = [37, 5, 64, 8, 21]

Train = Callable[[FitIns, list[Array]], tuple[Sequence[Array], int, dict[str, Scalar]]]


def fit_res(arrays: Sequence[Array], examples: Any = 10, **metrics: Scalar) -> FitRes:
    """Write a reply."""
    return FitRes(OK, ndarrays_to_parameters(list(arrays)), examples, {**metrics})


def answer(partition_id: int, result: FitRes) -> Answer[FitRes]:
    """Let a partition reply."""
    return Answer(Member(Node(partition_id), partition_id), result)


def asked(
    strategy: Strategy,
    server_round: int,
    parameters: Parameters | Sequence[Array] = PARAMETERS,
    clients: int = 3,
) -> dict[int, FitIns]:
    """Configure a round of so many clients; return what each is sent."""
    if not isinstance(parameters, Parameters):
        parameters = ndarrays_to_parameters(list(parameters))
    manager = managed([Node(partition) for partition in range(clients)])
    pairs = strategy.configure_fit(server_round, parameters, manager)
    return {int(client.cid): ins for client, ins in pairs}


def aggregated(
    strategy: Strategy, server_round: int, *results: FitRes, failures: Sequence[Failure] = ()
) -> list[Array] | None:
    """Hand over the replies of clients 0, 1, ...; return the new model, None for none."""
    pairs: Any = [(answer(p, result).member, result) for p, result in enumerate(results)]
    parameters, _ = strategy.aggregate_fit(server_round, pairs, list(failures))
    return None if parameters is None else parameters_to_ndarrays(parameters)


def has_lost(client: int, run: str, state_round: int) -> MemberFailedError:
    """Return the failure of a client that no longer has its state of a round."""
    return MemberFailedError(
        client, f"{lost_state(client, run, state_round)}: memory holds nothing"
    )


def node(partition_id: int, train: Train) -> Node:
    """Make a node that trains with a function of the message and its arrays."""

    def reply(ins: FitIns) -> FitRes:
        arrays, examples, metrics = train(ins, parameters_to_ndarrays(ins.parameters))
        return fit_res(arrays, examples, **metrics)

    return Node(partition_id, reply, cid=str(700 + partition_id))


def moved(partition: int, ins: FitIns, arrays: list[Array]) -> Any:
    """Train as a plain client whose model depends on the round and its partition."""
    number = ins.config.get("round", 1)
    return trained(arrays, int(number), partition), EXAMPLES[partition], {"train_loss": 0.5}


def plain_nodes(clients: int = 5) -> list[Node]:
    return [node(partition, partial(moved, partition)) for partition in range(clients)]


def all_of(kind: Any, clients: int = 5, **options: Any) -> Any:
    """Build a strategy that lets every client train."""
    return kind(
        initial_parameters=PARAMETERS,
        min_fit_clients=clients,
        min_available_clients=clients,
        fit_metrics_aggregation_fn=lambda _: {},
        on_fit_config_fn=lambda number: {"round": number},
        **options,
    )


def run(strategy: Strategy, nodes: Sequence[Node], rounds: int = 3) -> list[Array]:
    server = Server(client_manager=managed(nodes), strategy=strategy)
    server.fit(rounds, timeout=None)
    return parameters_to_ndarrays(server.parameters)
