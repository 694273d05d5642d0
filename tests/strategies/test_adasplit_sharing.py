"""Client parts that are averaged, or go from client to client: when, and what travels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.weights_payload import decode_weights, named_specs
from strategies import AdaSplit
from strategies.adasplit_sharing import Sharing
from tests.strategies.adasplit_federation import (
    Exchanged,
    adasplit,
    client_arrays,
    evaluation,
    exchange,
    frozen,
    run_rounds,
    samples_of,
    split_nodes,
    tiny_split,
)
from tests.strategies.federation import managed, same_bits
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array

SPLIT = tiny_split()
SPECS = named_specs({"client": SPLIT.client, "head": SPLIT.head})


def sent(played: Exchanged, client: int) -> dict[str, Array]:
    ins, plan = played.instructions[client], played.plan(client)
    tensors = ins.parameters.tensors[: plan.weight_arrays]
    return decode_weights(tensors, SPECS, server_round=plan.server_round)


def came(played: Exchanged, client: int) -> dict[str, Array]:
    result = played.results[client]
    tensors = result.parameters.tensors[int(result.metrics["activation_arrays"]) :]
    server_round = played.plan(client).server_round
    return decode_weights(tensors, SPECS, server_round=server_round, sender="test")


def same(first: dict[str, Array], second: dict[str, Array]) -> bool:
    return list(first) == list(second) and same_bits(list(first.values()), list(second.values()))


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_averaged_parts_go_to_everybody_in_both_phases(kappa: float) -> None:
    strategy, nodes = adasplit(client_weights="averaged", kappa=kappa, rounds=4), split_nodes(2)
    nodes[1].data = samples_of(1, 4)  # a third of the other's
    played = run_rounds(strategy, nodes, range(1, 5))
    for before, after in pairwise(played):
        first, second = came(before, 0), came(before, 1)
        mean = {
            name: np.asarray(first[name] * 0.75, np.float32) + np.asarray(second[name] * 0.25)
            for name in first
        }
        for client in (0, 1):
            assert same(sent(after, client), mean)
        assert same_bits(before.arrays[: len(mean)], list(mean.values()))
    assert all(result.num_examples == (12, 4)[c] for c, result in played[0].results.items())


def test_parts_are_averaged_by_the_samples_of_all_their_exchanges() -> None:
    options: dict[str, Any] = {"client_weights": "averaged", "share_every": 2, "selection": "all"}
    strategy, nodes = adasplit(rounds=5, **options), split_nodes(2)
    nodes[1].data = samples_of(1, 4)  # a third of the other's

    def lost(_: object) -> None:
        raise ConnectionError

    manager = managed(nodes)
    first = exchange(strategy, manager, 1)
    assert [first.plan(client).upload_weights for client in (0, 1)] == [False, False]
    second = exchange(strategy, manager, 2)
    assert [second.plan(client).weight_arrays for client in (0, 1)] == [0, 0]
    one, other = came(second, 0), came(second, 1)
    mean = {n: np.asarray(one[n] * 0.75, np.float32) + np.asarray(other[n] * 0.25) for n in one}
    nodes[0].spoil = lost  # type: ignore[assignment]
    third = exchange(strategy, manager, 3)
    assert same(sent(third, 0), mean)
    assert same(sent(third, 1), mean)
    nodes[0].spoil = None
    # Client 0 has trained on the mean once, client 1 twice: 12 samples, and 2 * 4.
    fourth = exchange(strategy, manager, 4)
    assert same(sent(fourth, 0), mean)
    assert fourth.plan(1).weight_arrays == 0
    one, other = came(fourth, 0), came(fourth, 1)
    fifth = exchange(strategy, manager, 5)
    mean = {
        n: np.asarray(one[n] * np.float64(0.6), np.float32)
        + np.asarray(other[n] * np.float64(0.4), np.float32)
        for n in one
    }
    assert same(sent(fifth, 0), mean)


def test_of_averaged_parts_only_good_replies_count() -> None:
    strategy, nodes = adasplit(client_weights="averaged", selection="all"), split_nodes(2)

    def fail(_: object) -> None:
        raise ConnectionError

    nodes[0].spoil = fail  # type: ignore[assignment]
    first, second = run_rounds(strategy, nodes, (1, 2))
    assert same(sent(second, 0), came(first, 1))


def relayed(**options: Any) -> tuple[AdaSplit, list[Exchanged]]:
    strategy = adasplit(client_weights="relayed", rounds=8, eta=0.5, **options)
    return strategy, run_rounds(strategy, split_nodes(3), range(1, 9))


def test_relayed_parts_go_from_client_to_client() -> None:
    _, played = relayed(kappa=0.25)
    assert [list(each.instructions) for each in played] == [[0], [1], [2]] * 2 + [[0], [1]]
    for before, after in pairwise(played):
        (client,), (following,) = before.instructions, after.instructions
        assert same(sent(after, following), came(before, client))
        assert same_bits(before.arrays[:4], list(came(before, client).values()))
    assert [each.report.phase for each in played[:3]] == ["local", "local", "global"]


def test_relayed_uploads_are_picked_for_a_pass() -> None:
    _, played = relayed(kappa=0.0)
    uploads = [len(each.uploaders) for each in played]
    assert sum(uploads[:3]) == sum(uploads[3:6]) == 2  # .5 of 3, half rounded up
    assert all(client.failure == "" for each in played for client in each.report.clients)
    assert all(each.metrics["picked"] == count for each, count in zip(played, uploads, strict=True))


def test_a_pass_of_relayed_turns_is_one_entry_of_the_orchestrator() -> None:
    strategy, nodes = adasplit(rounds=6, client_weights="relayed", selection="all"), split_nodes(3)
    for number in range(1, 7):
        exchange(strategy, managed(nodes), number)
        assert strategy.orchestrator.exchanges == number // 3
    terms = strategy.orchestrator.terms([0, 1, 2])
    # All three were picked as often: their places in the pass make no difference.
    assert len(set(terms.exploration.tolist())) == 1


def test_a_relay_passes_over_who_fails_until_nobody_is_left() -> None:
    def fail(_: object) -> None:
        raise ConnectionError("gone")

    strategy, nodes = adasplit(client_weights="relayed", rounds=8), split_nodes(3)
    manager = managed(nodes)
    first = exchange(strategy, manager, 1)
    nodes[1].spoil = fail  # type: ignore[assignment]
    second = exchange(strategy, manager, 2)
    assert [client.failure for client in second.report.clients] == ["client 1: gone"]
    assert same_bits(second.arrays[:4], first.arrays[:4])
    third = exchange(strategy, manager, 3)
    assert same(sent(third, 2), came(first, 0))
    for node in nodes:
        node.spoil = fail  # type: ignore[assignment]
    for server_round in (4, 5):
        exchange(strategy, manager, server_round)
    with pytest.raises(RoundFailedError, match=r"round 6: no .*client delivered\. client 2: gone"):
        exchange(strategy, manager, 6)


@pytest.mark.parametrize("sharing", ["averaged", "relayed"])
def test_shared_parts_are_what_is_tested(sharing: str) -> None:
    strategy, nodes = adasplit(client_weights=sharing), split_nodes(2)
    manager = managed(nodes)
    played = exchange(strategy, manager, 1)
    outcome = evaluation(strategy, manager, 1)
    for client, ins in outcome.instructions.items():
        plan = outcome.plan(client)
        weights = decode_weights(
            ins.parameters.tensors[: plan.weight_arrays], SPECS, server_round=1
        )
        assert same_bits(list(weights.values()), played.arrays[: len(weights)])
        assert plan.state_round == (1 if client in played.instructions else 0)


def test_personal_parts_never_leave_their_client() -> None:
    strategy, nodes = adasplit(), split_nodes(2)
    played = run_rounds(strategy, nodes, (1, 2))
    own = [client_arrays(node)["array/weights/client.0.weight"] for node in nodes]
    assert not np.array_equal(own[0], own[1])
    start = tiny_split().client.state_dict()["0.weight"].numpy()
    assert np.array_equal(played[1].arrays[0], start)


def sharing_of(rounds: int = 9, **options: Any) -> Sharing:
    given = {"kappa": 0.0, "client_weights": "averaged", "share_every": 2, **options}
    return Sharing(AdaSplitSettings(**given), rounds)


def test_a_period_counts_samples_of_those_who_delivered() -> None:
    sharing = sharing_of()
    sharing.begin([2, 4, 7])
    assert sharing.begins([2, 4, 7]) == {2, 4, 7}
    sharing.took({2: 10, 7: 4}, finished=False, shared=False, picks=[2, 4])
    assert (sharing.samples, sharing.is_over) == ({2: 10, 7: 4}, False)
    assert sharing.begins([2, 4, 7]) == {4}
    sharing.lost(7)
    assert sharing.begins([2, 4, 7]) == {4, 7}
    sharing.took({2: 10, 4: 6, 7: 3}, finished=False, shared=True, picks=[])
    assert (sharing.samples, sharing.is_over) == ({2: 20, 4: 6, 7: 3}, True)
    sharing.begin([5])
    assert (sharing.members, sharing.samples, sharing.is_over) == ((5,), {}, False)


def test_a_turn_that_fails_is_cut_short_once_it_has_come_further() -> None:
    sharing = sharing_of(client_weights="relayed", share_every=5)

    def after(samples: dict[int, int], *, finished: bool = False) -> tuple[bool, bool]:
        """Return whether the period is over, and whether it is to be finished next."""
        sharing.took(samples, finished=finished, shared=finished, picks=[])
        return sharing.is_over, sharing.finishes(2)

    sharing.begin([3])
    assert after({}) == (True, False)
    sharing.begin([3])
    assert after({3: 8}) == (False, False)
    assert after({}) == (False, True)  # although there are no gradients to bring
    assert after({}, finished=True) == (True, False)
    sharing.begin([4])
    assert after({4: 8}) == (False, False)


def test_a_turn_whose_client_has_lost_its_state_is_over() -> None:
    sharing = sharing_of(client_weights="relayed", share_every=5)
    sharing.begin([3])
    sharing.took({3: 8}, finished=False, shared=False, picks=[])
    sharing.lost(3)
    sharing.took({}, finished=False, shared=False, picks=[])
    assert sharing.is_over


def test_nothing_is_noted_of_personal_parts() -> None:
    sharing = sharing_of(client_weights="personal", share_every=1, server_gradient="selected")
    sharing.begin([1, 2])
    sharing.took({1: 10}, finished=False, shared=False, picks=[1])
    assert (sharing.members, sharing.samples, sharing.is_over) == ((), {}, False)
    assert not sharing.finishes(9)
    assert not sharing.shares(9, [1])
    assert sharing.state_arrays() == {}


def test_a_period_goes_on_from_its_state() -> None:
    sharing, other = sharing_of(server_gradient="selected"), sharing_of(server_gradient="selected")
    assert sharing.state_arrays() == {}
    sharing.begin([2, 4, 7])
    assert sharing.state_arrays() == {}  # nothing of it is done
    for samples in ({7: 10, 2: 4}, {7: 10}):
        sharing.took(samples, finished=False, shared=False, picks=[2])
    other.load_state_arrays(sharing.state_arrays())
    assert (other.members, other.samples) == ((2, 4, 7), {7: 20, 2: 4})
    assert other.finishes(3)
    assert frozen(other.state_arrays()) == frozen(sharing.state_arrays())
    other.load_state_arrays({})
    assert (other.members, other.samples, other.finishes(3)) == ((), {}, False)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": None},
        {"counts": np.zeros(2, np.int64)},
        {"members": None},
        {"samples": np.zeros(3, np.int64)},
    ],
)
def test_something_else_is_no_state_of_a_period(change: dict[str, Any]) -> None:
    sharing = sharing_of()
    sharing.begin([2])
    sharing.took({2: 4}, finished=False, shared=False, picks=[])
    changed = {**sharing.state_arrays(), **change}
    state = {name: array for name, array in changed.items() if array is not None}
    with pytest.raises(SettingsError, match="no state of AdaSplit's shared client parts"):
        sharing.load_state_arrays(state)
    assert sharing.samples == {2: 4}


@pytest.mark.parametrize(
    ("server_round", "gradients", "ending"),
    [
        (1, False, (2, False)),
        (1, True, (2, True)),
        (6, False, (2, False)),
        (6, True, (1, True)),
        (7, False, (1, False)),
        (7, True, (0, True)),
        (8, False, (0, False)),
        (8, True, (0, False)),
    ],
)
def test_how_a_period_of_three_exchanges_goes_on(
    server_round: int, gradients: bool, ending: tuple[int, bool]
) -> None:
    chosen = AdaSplitSettings(
        kappa=0.0, client_weights="averaged", share_every=3, server_gradient="selected"
    )
    assert Sharing(chosen, 8).ending(server_round, gradients=gradients) == ending


@pytest.mark.parametrize("weights", ["averaged", "relayed"])
def test_a_round_without_anybody_counts_in_a_period(weights: str) -> None:
    chosen = AdaSplitSettings(
        kappa=0.0, client_weights=weights, share_every=2, server_gradient="selected"
    )
    sharing = Sharing(chosen, 9)
    sharing.begin([3])
    sharing.took({3: 7}, finished=False, shared=False, picks=[3])
    assert not sharing.finishes(2)
    sharing.idles()
    assert sharing.finishes(3)
    assert (sharing.samples, sharing.members) == ({3: 7}, (3,))
    sharing.begin([3])
    sharing.idles()
    assert sharing.members == ()
