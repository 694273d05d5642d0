"""Names of the model's arrays: given, learned, agreed on, and what is refused by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters
from flwr.server.strategy import FedAdam, FedAvg

from strategies import RoundReport, ZeroFL
from tests.strategies.federation import (
    Honest,
    Node,
    Toy,
    managed,
    play,
    received,
    same_bits,
    zerofl,
)
from tests.strategies.standard import MODEL, honest_manager, play_rounds
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.payload import decode, is_payload


def named(model: Toy, names: Sequence[str]) -> Toy:
    """Give the arrays of a model other names, and keep what is masked."""
    masked = tuple(names[position] for position in model.masked_positions)
    return Toy(dict(zip(names, model.values, strict=True)), masked)


BY_POSITION = named(MODEL, [str(position) for position in range(7)])
# As if two buffers of one shape were registered the other way round: only their names tell.
SWAPPED = named(MODEL, [*MODEL.names[:2], "bn.running_var", "bn.running_mean", *MODEL.names[4:]])
OTHER = named(MODEL, [f"module.{name}" for name in MODEL.names])


def federation(*models: Toy) -> list[Node]:
    """Make one honest client of ten samples for each model, partitions in this order."""
    return [
        Node(partition, Honest(model, partition), cid=str(900 - partition))
        for partition, model in enumerate(models)
    ]


def few() -> FedAvg:
    """Make a strategy that does not wait for a second client."""
    return FedAvg(min_fit_clients=1, min_available_clients=1, fraction_evaluate=0.0)


def failures(report: RoundReport) -> dict[int | None, str]:
    return {client.partition_id: client.failure for client in report.clients if client.failure}


# Given


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("conv.weight", "array_names is 'conv.weight'; expected a list of names, such as list"),
        (["a", 3], r"array_names is \['a', 3\]; expected a list of names"),
        ({"a": 1}, r"array_names is \{'a': 1\}; expected a list"),
        (7, "array_names is 7; expected a list"),
        (["a", "b", "a"], "array_names has 'a' more than once"),
    ],
)
def test_array_names_are_a_list_of_distinct_texts(names: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        zerofl(array_names=names)


def test_their_number_is_that_of_the_model_as_soon_as_there_is_one() -> None:
    names, message = MODEL.names[:-1], "array_names has 6 names, but the model has 7 arrays"
    with pytest.raises(SettingsError, match=message):
        zerofl(FedAvg(initial_parameters=MODEL.parameters), array_names=names)

    class Late(FedAvg):
        def initialize_parameters(self, client_manager: Any) -> Any:
            return MODEL.parameters

    with pytest.raises(SettingsError, match=message):
        zerofl(Late(), array_names=names).initialize_parameters(managed([Node(0), Node(1)]))
    with pytest.raises(SettingsError, match="array_names has 6 names, but the model has 4 arrays"):
        zerofl(array_names=names).initialize_parameters(managed([Node(0), Node(1)]))
    with pytest.raises(SettingsError, match=message):
        zerofl(array_names=names).configure_fit(1, MODEL.parameters, honest_manager())
    fitting = zerofl(FedAvg(initial_parameters=MODEL.parameters), array_names=tuple(MODEL.names))
    assert fitting.initialize_parameters(managed([Node(0), Node(1)])) == MODEL.parameters


def test_statistics_take_the_mean_also_when_all_clients_know_positions_only() -> None:
    def after(array_names: list[str] | None) -> dict[str, Any]:
        wrapped = FedAdam(initial_parameters=MODEL.parameters, eta=0.5)
        strategy = zerofl(wrapped, array_names=array_names)
        played = play(strategy, honest_manager(BY_POSITION), MODEL.parameters, 1)
        return dict(zip(MODEL.names, played.arrays, strict=True))

    plain = play(zerofl(few()), honest_manager(BY_POSITION), MODEL.parameters, 1).arrays
    mean = dict(zip(MODEL.names, plain, strict=True))
    told, untold = after(MODEL.names), after(None)
    for name in ("bn.running_mean", "bn.running_var"):
        assert same_bits([told[name]], [mean[name]])
        assert not np.allclose(untold[name], mean[name])
    assert same_bits([told["fc.weight"]], [untold["fc.weight"]])
    assert not np.allclose(told["fc.weight"], mean["fc.weight"])


def test_reports_and_downlinks_have_given_names_from_the_first_round_on() -> None:
    reports: list[RoundReport] = []
    wide = Toy({"a.w": np.eye(90, dtype=np.float32), "b.w": np.eye(90, dtype=np.float32)}, ("b.w",))
    strategy = zerofl(few(), array_names=wide.names, on_round=reports.append)
    nodes = federation(named(wide, ["0", "1"]))
    played = play(strategy, managed(nodes), wide.parameters, 1)
    sent = played.instructions[0].parameters
    assert is_payload(sent.tensors)
    entries = decode(sent.tensors, None, sender="server").entries
    assert [entry.name for entry in entries] == ["a.w", "b.w"]
    assert [layer.layer for layer in reports[0].layers] == ["b.w"]


@pytest.mark.parametrize("position_clients", [0, 2])
def test_replies_are_held_against_given_names_in_the_first_round(position_clients: int) -> None:
    # Most have other names, and are refused all the same.
    reports: list[RoundReport] = []
    nodes = federation(OTHER, MODEL, OTHER, OTHER, *[BY_POSITION] * position_clients)
    strategy = zerofl(few(), array_names=MODEL.names, on_round=reports.append)
    played = play(strategy, managed(nodes), MODEL.parameters, 1)
    assert played.metrics["replies"] == 1 + position_clients
    assert played.metrics["failures"] == 3
    assert list(failures(reports[0])) == [0, 2, 3]
    assert failures(reports[0])[2] == (
        "client 2, layer module.conv.weight, field name: array 0 has this name where the model has "
        "conv.weight"
    )
    alone = [node for node in nodes if node.partition_id not in (0, 2, 3)]
    expected = play(zerofl(few()), managed(alone), MODEL.parameters, 1)
    assert same_bits(played.arrays, expected.arrays)


def test_a_model_whose_keys_are_numbers_may_say_so() -> None:
    strategy = zerofl(few(), array_names=BY_POSITION.names)
    played = play(strategy, managed(federation(MODEL, BY_POSITION)), MODEL.parameters, 1)
    assert (played.metrics["replies"], played.metrics["failures"]) == (1, 1)
    assert strategy.model.names == BY_POSITION.names


# Learned


@pytest.mark.parametrize(
    ("models", "winner", "refused"),
    [
        ([OTHER, MODEL, MODEL], MODEL, [0]),
        ([MODEL, OTHER, SWAPPED, OTHER], OTHER, [0, 2]),
        ([OTHER, MODEL, SWAPPED], OTHER, [1, 2]),
        ([SWAPPED, MODEL, MODEL, SWAPPED], SWAPPED, [1, 2]),
        ([BY_POSITION, BY_POSITION, BY_POSITION, OTHER, MODEL, MODEL], MODEL, [3]),
        ([BY_POSITION, BY_POSITION], BY_POSITION, []),
    ],
    ids=["most", "most of three", "tie of all", "tie of two", "positions do not vote", "none"],
)
def test_the_names_of_most_win_and_the_others_are_refused(
    models: list[Toy], winner: Toy, refused: list[int]
) -> None:
    reports: list[RoundReport] = []
    nodes = federation(*models)
    strategy = zerofl(few(), rule="top-k-diff", on_round=reports.append)
    played = play(strategy, managed(nodes), MODEL.parameters, 1)
    assert strategy.model.names == winner.names
    assert list(failures(reports[0])) == refused
    assert all("field name" in reason for reason in failures(reports[0]).values())
    # Nothing of them is in the sum.
    alone = [node for node in nodes if node.partition_id not in refused]
    expected = play(zerofl(few(), rule="top-k-diff"), managed(alone), MODEL.parameters, 1)
    assert same_bits(played.arrays, expected.arrays)


def test_a_reply_that_is_bad_for_another_reason_has_no_vote() -> None:
    nodes = federation(OTHER, OTHER, MODEL)
    for node in nodes[:2]:
        honest = node.train
        assert honest is not None
        node.train = lambda ins, honest=honest: with_examples(honest(ins), 0)
    strategy = zerofl(few())
    play(strategy, managed(nodes), MODEL.parameters, 1)
    assert strategy.model.names == MODEL.names


def with_examples(result: Any, num_examples: int) -> Any:
    result.num_examples = num_examples
    return result


def test_names_that_were_learned_hold_in_later_rounds() -> None:
    reports: list[RoundReport] = []
    strategy = zerofl(few(), on_round=reports.append)
    first = play(strategy, managed(federation(MODEL)), MODEL.parameters, 1)
    nodes = federation(OTHER, OTHER, MODEL, BY_POSITION)
    play(strategy, managed(nodes), first.parameters, 2)
    assert list(failures(reports[1])) == [0, 1]
    assert strategy.model.names == MODEL.names


def test_a_client_with_other_names_can_stop_the_run_instead() -> None:
    strategy = zerofl(few(), on_failure="raise")
    with pytest.raises(RoundFailedError, match=r"round 1: client 1, layer .*, field name: "):
        play(strategy, managed(federation(MODEL, OTHER)), MODEL.parameters, 1)
    assert strategy.model.known_names is None


# After a resume


def resumed(state: ZeroFL, **options: Any) -> ZeroFL:
    strategy = zerofl(few(), **options)
    strategy.load_state_arrays(state.state_arrays())
    return strategy


@pytest.mark.parametrize("given", [None, MODEL.names])
def test_a_resumed_run_knows_the_names_that_it_had(given: list[str] | None) -> None:
    before = zerofl(few())
    first = play(before, honest_manager(), MODEL.parameters, 1)
    strategy = resumed(before, array_names=given)
    assert strategy.model.known_names == MODEL.names
    played = play(strategy, managed(federation(OTHER, OTHER, MODEL)), first.parameters, 2)
    assert (played.metrics["replies"], played.metrics["failures"]) == (1, 2)
    assert same_bits(received(played.instructions[0].parameters)[0], first.arrays)


def test_names_may_be_given_later_but_not_changed() -> None:
    unnamed, learned = zerofl(few()), zerofl(few())
    play(unnamed, honest_manager(BY_POSITION), MODEL.parameters, 1)
    assert resumed(unnamed).model.known_names is None
    assert resumed(unnamed, array_names=MODEL.names).model.known_names == MODEL.names
    play(learned, honest_manager(), MODEL.parameters, 1)
    with pytest.raises(SettingsError, match=r"array_names are not the names .*'conv\.weight'"):
        resumed(learned, array_names=OTHER.names)


def test_a_run_with_given_names_repeats_one_that_learned_them() -> None:
    ends = []
    for names in (None, MODEL.names):
        strategy = zerofl(few(), array_names=names)
        start = ndarrays_to_parameters(MODEL.values)
        ends.append(play_rounds(strategy, honest_manager(), start, (1, 2, 3))[-1].arrays)
    assert same_bits(*ends)
