"""Clients test their own networks, or the server does for them: both give the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import EvaluateRes, Scalar
from torch import nn

from adasplit_flwr.activation_payload import encode_activations
from adasplit_flwr.kept_states import STATE_KEY
from adasplit_flwr.weights_payload import decode_server_part, named_specs
from strategies.metering import message_bytes
from tests.strategies.adasplit_bad_replies import batches
from tests.strategies.adasplit_federation import (
    BATCH,
    CLASSES,
    NOTHING,
    Evaluated,
    SplitNode,
    adasplit,
    evaluation,
    exchange,
    split_nodes,
    tiny_split,
)
from tests.strategies.federation import managed
from zerofl_flwr.errors import ClientFailedError


def played(rounds: int = 2, clients: int = 3, **options: Any) -> tuple[Evaluated, list[SplitNode]]:
    strategy, nodes = adasplit(**options), split_nodes(clients)
    manager = managed(nodes)
    for server_round in range(1, rounds + 1):
        exchange(strategy, manager, server_round)
    return evaluation(strategy, manager, rounds), nodes


def numbers(outcome: Evaluated) -> list[tuple[int | None, int, float, float]]:
    clients = outcome.report.clients
    return [(c.partition_id, c.num_examples, c.accuracy, c.loss) for c in clients]


@pytest.mark.parametrize("mask", ["soft", "hard", "none"])
@pytest.mark.parametrize("sharing", ["personal", "averaged"])
def test_both_inferences_give_the_same_numbers(mask: str, sharing: str) -> None:
    at_client, _ = played(mask=mask, client_weights=sharing)
    at_server, _ = played(mask=mask, client_weights=sharing, inference="server")
    assert numbers(at_client) == numbers(at_server)
    assert at_client.metrics["accuracy"] == at_server.metrics["accuracy"]
    assert at_client.loss == at_server.loss
    assert [count for _, count, _, _ in numbers(at_client)] == [12] * 3
    assert len({loss for *_, loss in numbers(at_client)}) == 3


def test_a_client_is_sent_its_own_server_part() -> None:
    outcome, nodes = played()
    specs = named_specs({"server": tiny_split().server})
    parts = {}
    for client, ins in outcome.instructions.items():
        plan = outcome.plan(client)
        assert (plan.weight_arrays, plan.state_round, plan.upload) == (0, 2, False)
        parts[client] = decode_server_part(ins.parameters.tensors, specs, server_round=2)
    assert not np.array_equal(parts[0]["server.0.weight"], parts[1]["server.0.weight"])
    # The whole network by hand: the client's own part, then the server part that came.
    split = nodes[1].client().split
    record = nodes[1].state.array_records[STATE_KEY]
    split.client.load_state_dict(
        {
            key: torch.tensor(record[f"array/weights/client.{key}"].numpy())
            for key in split.client.state_dict()
        }
    )
    split.server.load_state_dict(
        {key.removeprefix("server."): torch.tensor(a) for key, a in parts[1].items()}
    )
    inputs, labels = nodes[1].data.tensors
    with torch.no_grad():
        logits = split(inputs)
    test = outcome.report.clients[1]
    assert test.accuracy == int((logits.argmax(1) == labels).sum()) / 12
    assert test.loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-6)


def test_without_masks_all_are_sent_one_message() -> None:
    outcome, _ = played(mask="none")
    assert len({id(ins) for ins in outcome.instructions.values()}) == 1
    masked, _ = played()
    assert len({id(ins) for ins in masked.instructions.values()}) == 3


def test_who_never_trained_tests_the_start_behind_a_fresh_mask() -> None:
    strategy = adasplit(fraction_fit=0.25, eta=0.6, min_available_clients=20)
    manager = managed(split_nodes(20))
    trained = set(exchange(strategy, manager, 1).instructions)
    outcome = evaluation(strategy, manager, 1)
    assert len(trained) == 5
    assert [client.partition_id for client in outcome.report.clients] == list(range(20))
    assert {c.partition_id for c in outcome.report.clients if c.trained} == trained
    for client in range(20):
        plan = outcome.plan(client)
        assert (plan.state_round, plan.weight_arrays > 0) == (
            (1, False) if client in trained else (0, True)
        )
    assert outcome.metrics["evaluation_replies"] == 20
    accuracies = {c.partition_id: c.accuracy for c in outcome.report.clients}
    assert outcome.metrics["accuracy"] == pytest.approx(np.mean(list(accuracies.values())))
    assert outcome.metrics["trained_accuracy"] == pytest.approx(
        np.mean([accuracies[client] for client in trained])
    )
    again = adasplit(fraction_fit=0.25, eta=0.6, min_available_clients=20, inference="server")
    other = managed(split_nodes(20))
    exchange(again, other, 1)
    assert numbers(evaluation(again, other, 1)) == numbers(outcome)


@pytest.mark.parametrize("inference", ["client", "server"])
def test_who_trained_but_was_never_picked_is_told_apart(inference: str) -> None:
    strategy = adasplit(eta=0.3, inference=inference)
    manager = managed(split_nodes(3))
    before = evaluation(strategy, manager, 1)
    assert not any(client.learned for client in before.report.clients)
    assert np.isnan(before.metrics["learned_accuracy"])
    [picked] = exchange(strategy, manager, 1).uploaders
    outcome = evaluation(strategy, manager, 1)
    told = [(client.trained, client.learned) for client in outcome.report.clients]
    assert told == [(True, client == picked) for client in range(3)]
    assert outcome.metrics["learned_accuracy"] == outcome.report.clients[picked].accuracy


def test_without_masks_all_have_the_part_that_learned_from_anybody() -> None:
    strategy = adasplit(rounds=4, kappa=0.3, eta=0.3, mask="none")
    manager = managed(split_nodes(3))
    learned = []
    for server_round in (1, 2):
        exchange(strategy, manager, server_round)
        outcome = evaluation(strategy, manager, server_round)
        learned.append([client.learned for client in outcome.report.clients])
    assert learned == [[False] * 3, [True] * 3]
    assert outcome.metrics["learned_accuracy"] == outcome.metrics["accuracy"]


def test_who_tests_and_when() -> None:
    strategy = adasplit(rounds=5, kappa=0.4, evaluate_every=2, fraction_evaluate=0.5)
    manager = managed(split_nodes(4))
    sizes = []
    for server_round in range(1, 6):
        exchange(strategy, manager, server_round)
        pairs = strategy.configure_evaluate(server_round, NOTHING, manager)
        sizes.append(len(pairs))
    assert sizes == [0, 2, 0, 2, 2]  # also in the local phase, and in the last round
    never = adasplit(fraction_evaluate=0.0)
    assert never.configure_evaluate(6, NOTHING, manager) == []
    few = adasplit(fraction_evaluate=0.01)
    assert len(few.configure_evaluate(6, NOTHING, manager)) == 1


def test_tests_are_drawn_by_seed() -> None:
    def drawn(seed: int) -> list[list[str]]:
        strategy, manager = adasplit(fraction_evaluate=0.5, seed=seed), managed(split_nodes(8))
        rounds = [strategy.configure_evaluate(n, NOTHING, manager) for n in (1, 2)]
        return [[client.cid for client, _ in pairs] for pairs in rounds]

    assert drawn(1) == drawn(1)
    assert drawn(1)[0] != drawn(1)[1]
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("inference", ["client", "server"])
def test_a_test_changes_nothing_and_is_billed_apart(inference: str) -> None:
    strategy, nodes = adasplit(inference=inference), split_nodes(2)
    other, others = adasplit(inference=inference), split_nodes(2)
    manager = managed(nodes)
    first = exchange(strategy, manager, 1)
    outcome = evaluation(strategy, manager, 1)
    second = exchange(strategy, manager, 2)
    for client in outcome.report.clients:
        assert client.partition_id is not None
        sent, came = (each[client.partition_id] for each in (outcome.instructions, outcome.results))
        assert client.downlink_bytes == message_bytes(sent)
        assert client.uplink_bytes == message_bytes(came)
    assert outcome.metrics["evaluation_uplink_bytes"] == sum(
        client.uplink_bytes for client in outcome.report.clients
    )
    untested = [exchange(other, managed(others), server_round) for server_round in (1, 2)]
    for each, same in zip((first, second), untested, strict=True):
        assert [a.tobytes() for a in each.arrays] == [a.tobytes() for a in same.arrays]
        assert each.metrics["uplink_bytes"] == pytest.approx(same.metrics["uplink_bytes"], abs=9)


Spoil = Callable[[EvaluateRes], EvaluateRes]


def metrics(**values: Scalar | None) -> Spoil:
    def spoil(result: EvaluateRes) -> EvaluateRes:
        changed = {**result.metrics, **{k.replace("_", "-"): v for k, v in values.items()}}
        return replace(result, metrics={k: v for k, v in changed.items() if v is not None})

    return spoil


def payload(**options: Any) -> Spoil:
    """Put a whole other upload in place; its batches have four samples each."""
    given = {"server_round": 1, "classes": CLASSES, "sizes": (BATCH,) * 3, **options}
    server_round, classes = given.pop("server_round"), given.pop("classes")
    arrays = encode_activations(
        batches(given.pop("sizes"), **given), server_round=server_round, num_classes=classes
    )

    def spoil(result: EvaluateRes) -> EvaluateRes:
        return replace(
            result,
            num_examples=12,
            metrics={
                "batches": 3,
                **{f"payload-{i}": _npy(array) for i, array in enumerate(arrays)},
            },
        )

    return spoil


AT_CLIENT: dict[str, tuple[Spoil, str]] = {
    "no accuracy": (metrics(accuracy=None), "field accuracy: expected a finite number, got None"),
    "accuracy above 1": (metrics(accuracy=1.5), "field accuracy: 1.5 is not between 0 and 1"),
    "NaN": (metrics(accuracy=float("nan")), "field accuracy: .*got nan"),
    "text": (metrics(accuracy="good"), "field accuracy: .*got 'good'"),
    "a loss that is not finite": (lambda r: replace(r, loss=float("inf")), "field loss: .*inf"),
    "no samples": (lambda r: replace(r, num_examples=0), "field num_examples: num_examples is 0"),
}
AT_SERVER: dict[str, tuple[Spoil, str]] = {
    "no count": (metrics(batches=None), "field batches: .*got None"),
    "another count": (metrics(batches=4), "layer batch-ids, field data: batch 3 is missing"),
    "no payload": (lambda r: replace(r, metrics={"batches": 3}), "field header: an empty list"),
    "no bytes": (metrics(payload_1=3), "field payload-1: bytes expected, int came"),
    "another round": (payload(server_round=2), "field round: round 1 expected, 2 came"),
    "another cut": (payload(shape=(4,)), "layer activations, field shape"),
    "no class": (payload(label=3, classes=4), "layer labels, field data: sample 0 has class 3"),
    "other samples": (lambda r: replace(r, num_examples=13), "num_examples is 13, but the batches"),
}


@pytest.mark.parametrize(
    ("inference", "spoil", "message"),
    [("client", *case) for case in AT_CLIENT.values()]
    + [("server", *case) for case in AT_SERVER.values()],
    ids=[*AT_CLIENT, *AT_SERVER],
)
def test_a_bad_test_is_refused_by_client_and_field(
    inference: str, spoil: Spoil, message: str
) -> None:
    strategy, nodes = adasplit(inference=inference), split_nodes(3)
    nodes[1].spoil_test = spoil
    outcome = evaluation(strategy, managed(nodes), 1)
    good = [client.partition_id for client in outcome.report.good]
    assert good == [0, 2]
    bad = outcome.report.clients[1]
    assert bad.failure.startswith("client 1, ")
    assert re.search(message, bad.failure)
    assert np.isnan([bad.accuracy, bad.loss]).all()
    assert outcome.metrics["evaluation_failures"] == 1
    assert bad.uplink_bytes > 0


def test_a_test_may_upload_as_many_megabytes_as_the_option_says() -> None:
    # Each client tests on 12 samples of five numbers.
    fitting, _ = played(0, inference="server", max_upload_mb=12 * 20 / 10**6)
    assert len(fitting.report.good) == 3
    short, _ = played(0, inference="server", max_upload_mb=11 * 20 / 10**6)
    assert [client.failure for client in short.report.clients] == [
        f"client {client}, field num_examples: activations of 12 samples take 0.00024 MB in "
        "float32; max_upload_mb is 0.00022, enough for 11 samples"
        for client in range(3)
    ]
    at_client, _ = played(0, max_upload_mb=11 * 20 / 10**6)
    assert len(at_client.report.good) == 3


def test_a_test_that_uploads_more_than_it_speaks_of_is_bounded_too() -> None:
    strategy = adasplit(inference="server", max_upload_mb=12 * 20 / 10**6)
    [node] = nodes = split_nodes(1)
    node.spoil_test = payload(sizes=(5, 5, 5))
    outcome = evaluation(strategy, managed(nodes), 1)
    assert outcome.report.clients[0].failure == (
        "client 0, layer batch-sizes, field data: the batches have 15 samples together, at most "
        "12 expected"
    )


def test_what_the_server_cannot_predict_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, nodes = adasplit(inference="server"), split_nodes(2)

    def predict(client: int, activations: torch.Tensor) -> torch.Tensor:
        if client == 1:
            raise ClientFailedError("client 1: the server part does not take its batch")
        return torch.full((len(activations), CLASSES), torch.nan)

    monkeypatch.setattr(strategy.server, "predict", predict)
    outcome = evaluation(strategy, managed(nodes), 1)
    assert [client.failure for client in outcome.report.clients] == [
        "client 0, field loss: expected a finite number, got nan",
        "client 1: the server part does not take its batch",
    ]
    assert outcome.loss is None


def test_where_all_fail_there_is_no_loss(flower_log: pytest.LogCaptureFixture) -> None:
    def fail(_: EvaluateRes) -> EvaluateRes:
        raise ConnectionError("gone")

    strategy, nodes = adasplit(), split_nodes(2)
    for node in nodes:
        node.spoil_test = fail
    outcome = evaluation(strategy, managed(nodes), 1)
    assert outcome.loss is None
    assert np.isnan(outcome.metrics["accuracy"])
    assert [client.failure for client in outcome.report.clients] == [
        "client 0: gone",
        "client 1: gone",
    ]
    assert "round 1, test failed: client 1: gone" in flower_log.text


def test_the_server_alone_evaluates_nothing() -> None:
    assert adasplit().evaluate(1, NOTHING) is None


def _npy(array: Any) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
