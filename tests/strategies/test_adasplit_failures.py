"""Bad replies leave no trace in AdaSplit's server, and the round goes on with the good ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.common import Code, FitIns, FitRes, Status

from adasplit_flwr.activation_payload import encode_activations
from strategies import AdaSplit
from tests.strategies.adasplit_bad_replies import (
    UPLOAD_FAULTS,
    Fault,
    batches,
    metrics,
    replaced,
)
from tests.strategies.adasplit_federation import (
    BATCH,
    CLASSES,
    Exchanged,
    adasplit,
    exchange,
    frozen,
    run_rounds,
    split_nodes,
)
from tests.strategies.federation import managed
from zerofl_flwr.errors import RoundFailedError


def broken(_: FitRes) -> FitRes:
    raise ConnectionError("the line broke")


def with_fault(spoil: Any) -> tuple[AdaSplit, Exchanged]:
    """Play a round in which all of three clients upload and the second one's reply is spoiled."""
    strategy, nodes = adasplit(selection="all"), split_nodes(3)
    nodes[1].spoil = spoil
    return strategy, run_rounds(strategy, nodes, (1,))[0]


WITHOUT, _ = with_fault(broken)
EXPECTED = frozen(WITHOUT.state_arrays())


@pytest.mark.parametrize("fault", UPLOAD_FAULTS.values(), ids=UPLOAD_FAULTS)
def test_the_others_teach_the_server_as_if_the_bad_reply_had_not_come(fault: Fault) -> None:
    strategy, played = with_fault(fault.spoil)
    assert frozen(strategy.state_arrays()) == EXPECTED
    assert strategy.server.clients() == [0, 2]
    assert [bool(client.failure) for client in played.report.clients] == [False, True, False]
    failure = played.report.clients[1].failure
    assert failure.startswith("client 1, ")
    assert f"field {fault.field}" in failure
    assert (played.metrics["replies"], played.metrics["failures"]) == (2, 1)
    assert played.report.clients[1].uplink_bytes > 0
    assert np.isnan(played.report.clients[1].server_loss)


@pytest.mark.parametrize(
    ("name", "on_failure"),
    [("an earlier round", "skip"), ("an earlier round", "raise"), ("no upload", "raise")],
)
def test_a_round_that_ends_the_run_changes_nothing(name: str, on_failure: str) -> None:
    strategy, nodes = adasplit(on_failure=on_failure, eta=0.3), split_nodes(3)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    after_one = frozen(strategy.state_arrays())
    fault = UPLOAD_FAULTS[name]
    spoil = metrics(round=-1) if name == "an earlier round" else _in_round_2(fault)
    for node in nodes:
        node.spoil = spoil
    with pytest.raises(RoundFailedError, match=r"round 2: .*client [012], "):
        exchange(strategy, manager, 2)
    assert frozen(strategy.state_arrays()) == after_one


def test_one_failure_is_enough_to_end_a_run_that_asks_for_it() -> None:
    strategy, nodes = adasplit(on_failure="raise", selection="all"), split_nodes(3)
    before = frozen(strategy.state_arrays())
    nodes[2].spoil = metrics(iterations=None)
    with pytest.raises(RoundFailedError, match=r"round 1: client 2, field iterations: .*got None"):
        run_rounds(strategy, nodes, (1,))
    after = frozen(strategy.state_arrays())
    assert {k: v for k, v in after.items() if not k.startswith("orchestrator")} == {
        k: v for k, v in before.items() if not k.startswith("orchestrator")
    }


def test_who_was_not_picked_may_fail_but_not_everybody_in_the_local_phase() -> None:
    strategy, nodes = adasplit(rounds=4, kappa=0.5), split_nodes(2)
    nodes[0].spoil = broken
    (first,) = run_rounds(strategy, nodes, (1,))
    assert first.report.clients[0].failure == "client 0: the line broke"
    assert first.metrics["replies"] == 1
    nodes[1].spoil = metrics(activation_arrays=4)
    with pytest.raises(RoundFailedError, match=r"round 2: no client delivered\. .*client 1, field"):
        exchange(strategy, managed(nodes), 2)


def test_a_round_without_an_upload_teaches_nothing_and_the_others_go_on() -> None:
    strategy, nodes = adasplit(eta=0.5), split_nodes(2)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    before = frozen(strategy.state_arrays())
    picked = strategy.orchestrator.pick([0, 1], 1)[0]
    nodes[picked].spoil = broken
    played = exchange(strategy, manager, 2)
    assert (played.metrics["replies"], played.metrics["failures"]) == (1, 1)
    assert np.isnan(played.report.server_loss)
    after = frozen(strategy.state_arrays())
    changed = {name for name in after if after[name] != before.get(name)}
    assert {name.partition("/")[0] for name in changed} == {"orchestrator", "clients"}
    assert exchange(strategy, manager, 3).plan(1 - picked).state_round == 2


def test_a_client_that_always_fails_does_not_keep_the_others_from_being_picked() -> None:
    strategy, nodes = adasplit(rounds=24, eta=0.25), split_nodes(4)
    nodes[2].spoil = broken
    rounds = run_rounds(strategy, nodes, range(1, 25))
    picks = [client.partition_id for r in rounds for client in r.report.clients if client.picked]
    assert len(picks) == 24
    assert all(picks.count(client) >= 3 for client in (0, 1, 3))
    assert strategy.server.clients() == [0, 1, 3]


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_run_goes_on_when_its_only_pick_or_everybody_has_lost_its_state(
    damage: str, tmp_path: Path
) -> None:
    strategy, nodes = adasplit(eta=0.5), split_nodes(2, state_dir=tmp_path)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    for node in nodes:
        node.state = RecordDict()
    for path in tmp_path.glob("*/client-*/round-1.npz"):
        path.write_bytes(path.read_bytes()[:100]) if damage == "damaged" else path.unlink()
    second = exchange(strategy, manager, 2)
    assert (second.metrics["replies"], second.metrics["restarts"]) == (0, 2)
    assert all("the state of round 1 is lost" in c.failure for c in second.report.clients)
    third = exchange(strategy, manager, 3)
    assert third.metrics["failures"] == 0
    assert [third.plan(client).state_round for client in (0, 1)] == [0, 0]


def test_failures_of_every_kind_get_their_clients_name() -> None:
    def cannot(_: FitIns) -> FitRes:
        return replace(result, status=Status(Code.FIT_NOT_IMPLEMENTED, "cannot train"))

    strategy, nodes = adasplit(selection="all"), split_nodes(3)
    manager = managed(nodes)
    result = exchange(strategy, manager, 1).results[0]
    nodes[0].train, nodes[2].spoil = cannot, broken
    played = exchange(strategy, manager, 2)
    assert [client.failure for client in played.report.clients] == [
        "client 0: cannot train",
        "",
        "client 2: the line broke",
    ]


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_lost_reply_is_made_up_for(has_folder: bool, tmp_path: Path) -> None:
    """The client trained, but the server does not know: it goes on from the state before."""
    strategy, alone = adasplit(selection="all"), adasplit(selection="all")
    nodes = split_nodes(2, state_dir=tmp_path if has_folder else None)
    manager, other = managed(nodes), managed(split_nodes(2))
    exchange(strategy, manager, 1)
    exchange(alone, other, 1)
    nodes[1].spoil = metrics(round=0)
    assert exchange(strategy, manager, 2).metrics["failures"] == 1
    nodes[1].spoil = None
    third = exchange(strategy, manager, 3)
    assert [third.plan(client).state_round for client in (0, 1)] == [2, 1]
    assert third.metrics["failures"] == 0
    # Its batches are those of its second exchange, which was lost.
    second = exchange(alone, other, 2)
    for came, expected in zip(third.batches(1), second.batches(1), strict=True):
        assert came.activations.tobytes() == expected.activations.tobytes()


def test_a_client_whose_first_reply_was_lost_begins_again() -> None:
    strategy, nodes = adasplit(selection="all"), split_nodes(2)
    nodes[1].spoil = broken
    manager = managed(nodes)
    first = exchange(strategy, manager, 1)
    nodes[1].spoil = None
    again = exchange(strategy, manager, 2)
    assert first.plan(1).state_round == again.plan(1).state_round == 0
    assert again.plan(1).weight_arrays > 0
    assert again.metrics["failures"] == 0


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_client_that_is_started_again_needs_a_folder(has_folder: bool, tmp_path: Path) -> None:
    strategy = adasplit(selection="all")
    nodes = split_nodes(2, state_dir=tmp_path if has_folder else None)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    nodes[1].state = RecordDict()
    failure = exchange(strategy, manager, 2).report.clients[1].failure
    if has_folder:
        assert failure == ""
    else:
        assert failure.startswith("client 1: ")
        assert "the state of round 1 is lost" in failure


def test_a_client_that_lost_its_state_begins_again(flower_log: pytest.LogCaptureFixture) -> None:
    strategy = adasplit(selection="all", server_gradient="selected")
    nodes = split_nodes(2)
    manager = managed(nodes)
    assert exchange(strategy, manager, 1).metrics["restarts"] == 0
    nodes[1].state = RecordDict()
    second = exchange(strategy, manager, 2)
    assert (second.metrics["restarts"], second.report.restarts) == (1, 1)
    assert "round 2: client 1 has lost its part of the network, and begins again" in flower_log.text
    third, fourth = exchange(strategy, manager, 3), exchange(strategy, manager, 4)
    assert [third.plan(client).state_round for client in (0, 1)] == [2, 0]
    assert [third.plan(client).weight_arrays > 0 for client in (0, 1)] == [False, True]
    assert third.plan(1).gradient_arrays == 0
    assert [fourth.plan(client).state_round for client in (0, 1)] == [3, 3]
    assert [each.metrics["failures"] for each in (third, fourth)] == [0, 0]
    assert [each.metrics["restarts"] for each in (third, fourth)] == [0, 0]


def test_other_failures_let_nobody_begin_again() -> None:
    def spoil(_: FitRes) -> FitRes:
        raise ConnectionError("client 0 of run run: the state of round 1 is lost")

    strategy, nodes = adasplit(selection="all"), split_nodes(2)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    nodes[1].spoil = spoil  # another client's words
    assert exchange(strategy, manager, 2).metrics["restarts"] == 0
    assert strategy.clients.state_round(1) == 1


def test_a_batch_that_diverges_ends_its_clients_exchange_alone() -> None:
    """Its first batch counts, its second is refused, its third is left out; others go on."""
    spoiled = batches()
    spoiled[1].activations[...] = 3e38
    arrays = encode_activations(spoiled, server_round=1, num_classes=CLASSES)
    strategy, played = with_fault(replaced(arrays))
    client = played.report.clients[1]
    assert "client 1: the " in client.failure
    assert "(batch 1 of its exchange, the rest left out)" in client.failure
    assert strategy.clients.state_round(1) == 1  # its own training is as good as before
    assert strategy.server.state_arrays()["steps"] == 7
    assert not np.isnan(client.server_loss)
    assert all(np.isfinite(array).all() for array in played.arrays)
    first_only = encode_activations(batches((BATCH,)), server_round=1, num_classes=CLASSES)
    short, nodes = adasplit(selection="all"), split_nodes(3)
    nodes[1].spoil = lambda r: replaced(first_only, BATCH)(metrics(iterations=1)(r))
    run_rounds(short, nodes, (1,))
    assert frozen(short.server.state_arrays()) == frozen(strategy.server.state_arrays())


@pytest.mark.parametrize("on_failure", ["skip", "raise"])
def test_uploads_that_all_diverge_end_the_run(on_failure: str) -> None:
    spoiled = batches()
    for batch in spoiled:
        batch.activations[...] = 3e38
    arrays = encode_activations(spoiled, server_round=1, num_classes=CLASSES)
    strategy, nodes = adasplit(on_failure=on_failure, selection="all"), split_nodes(2)
    before = frozen(strategy.server.state_arrays())
    for node in nodes:
        node.spoil = replaced(arrays)
    expected = "could learn from no upload" if on_failure == "skip" else "round 1: client 0: "
    with pytest.raises(RoundFailedError, match=expected):
        run_rounds(strategy, nodes, (1,))
    assert frozen(strategy.server.state_arrays()) == before


def _in_round_2(fault: Fault) -> Any:
    if fault is not UPLOAD_FAULTS["NaN"]:
        return fault.spoil
    arrays = encode_activations(batches(), server_round=2, num_classes=CLASSES)
    arrays[1] = np.full_like(arrays[1], np.nan)
    return replaced(arrays)
