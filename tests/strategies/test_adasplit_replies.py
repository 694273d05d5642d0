"""Replies of AdaSplit's clients are refused by client, layer and field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.common import FitIns, FitRes
from hypothesis import given
from hypothesis import strategies as st

from adasplit_flwr.plans import ExchangePlan
from strategies import adasplit_replies
from strategies.adasplit_downlink import Asked
from strategies.adasplit_replies import CutShapes, Exchange, ExchangeChecker, dense_bytes
from strategies.adasplit_weights import ClientWeights
from strategies.answers import Answer
from strategies.member import Member
from tests.strategies.adasplit_bad_replies import (
    UPLOAD_FAULTS,
    Fault,
    examples,
    metrics,
    tensors,
    uploaded,
)
from tests.strategies.adasplit_federation import (
    CLASSES,
    CUT,
    NOTHING,
    SplitNode,
    adasplit,
    tiny_split,
)
from tests.strategies.adasplit_federation import exchange as exchange_with
from tests.strategies.federation import managed
from zerofl_flwr.errors import PayloadError

SPLIT = tiny_split()
WEIGHTS = ClientWeights(SPLIT.client, SPLIT.head)
SHAPES = CutShapes((CUT,), CLASSES, 1024, 1024.0)


def asked(client: int = 3, **options: Any) -> tuple[SplitNode, FitIns]:
    """Let a strategy write the message of round 1 to a client."""
    node = SplitNode(client)
    ((_, ins),) = adasplit(**options).configure_fit(1, NOTHING, managed([node]))
    return node, ins


NODE, MESSAGE = asked()
HONEST = NODE.train_client(MESSAGE)


def decode(
    result: FitRes,
    ins: FitIns = MESSAGE,
    client: int = 3,
    shapes: CutShapes = SHAPES,
    **plan: Any,
) -> Exchange:
    sent = ExchangePlan.from_config(ins.config)
    assert sent is not None
    members = Asked(plans={3: replace(sent, **plan)})
    checker = ExchangeChecker(members, shapes, WEIGHTS)
    return checker.decode(Answer(Member(SplitNode(client), client), result))


def refusal(result: FitRes, **options: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        decode(result, **options)
    return caught.value


def test_an_honest_reply_is_decoded_without_copies() -> None:
    exchange = decode(HONEST)
    assert exchange.client == 3
    assert [batch.batch_id for batch in exchange.batches] == [0, 1, 2]
    assert [batch.activations.shape for batch in exchange.batches] == [(4, CUT)] * 3
    assert exchange.weights == {}
    # CSR and float16 have to be made dense; dense float32 stays where it came.
    ones = decode(uploaded()(HONEST)).batches[0].activations
    assert not ones.flags.owndata
    assert not ones.flags.writeable


@pytest.mark.parametrize("fault", UPLOAD_FAULTS.values(), ids=UPLOAD_FAULTS)
def test_each_fault_of_an_upload_is_named(fault: Fault) -> None:
    error = refusal(fault.spoil(HONEST))
    assert (error.sender, error.layer, error.field) == ("client 3", fault.layer, fault.field)
    assert fault.says in str(error)
    assert len(str(error)) < 400


def test_another_number_of_batches_than_asked_for() -> None:
    error = refusal(HONEST, iterations=2)
    assert error.field == "iterations"
    assert error.reason == "2 batches were asked for, 3 taken"


def test_a_client_that_was_not_asked() -> None:
    assert refusal(HONEST, client=4).sender == "client 4"
    assert refusal(HONEST, client=4).field == "round"


def test_an_upload_in_the_local_phase_is_of_the_wrong_phase() -> None:
    error = refusal(HONEST, upload=False)
    assert error.field == "activation_arrays"
    assert "nobody asked for: the client is in the wrong phase" in error.reason
    quiet = metrics(activation_arrays=0)(HONEST)
    assert refusal(quiet, upload=False).field == "arrays"
    assert decode(tensors(lambda _: [])(quiet), upload=False).batches == []


def test_weights_come_behind_the_activations() -> None:
    node, ins = asked(client_weights="averaged")
    result = node.train_client(ins)
    exchange = decode(result, ins)
    assert list(exchange.weights) == list(WEIGHTS.arrays)
    assert len(exchange.batches) == 3
    assert refusal(result, upload_weights=False).field == "arrays"
    uploads = int(result.metrics["activation_arrays"])
    without = tensors(lambda all_tensors: all_tensors[:uploads])(result)
    assert refusal(without, ins=ins).reason == "an empty list came"
    of_another_round = tensors(lambda t: [*t[:uploads], *_weights_of_round_2()])(result)
    error = refusal(of_another_round, ins=ins)
    assert (error.sender, error.field) == ("client 3", "round")
    assert "round 1 expected, 2 came" in error.reason


def finishing() -> tuple[FitIns, FitRes]:
    """Let a client finish the exchange of round 1 in round 2, with the server's gradients."""
    options: dict[str, Any] = {"client_weights": "averaged", "server_gradient": "selected"}
    strategy, node = adasplit(**options), SplitNode(3)
    manager = managed([node])
    exchange_with(strategy, manager, 1)
    ((_, ins),) = strategy.configure_fit(2, NOTHING, manager)
    return ins, node.train_client(ins)


def test_a_finishing_reply_has_weights_and_nothing_else() -> None:
    ins, result = finishing()
    exchange = decode(result, ins)
    assert (exchange.batches, list(exchange.weights)) == ([], list(WEIGHTS.arrays))
    assert (result.num_examples, result.metrics["iterations"]) == (0, 0)
    expected = "0 expected in a round that takes no batch"
    for spoil, field, says in (
        (examples(4), "num_examples", f"{expected}, 4 came"),
        (examples(False), "num_examples", f"{expected}, False came"),
        (metrics(iterations=1), "iterations", f"{expected}, 1 came"),
        (metrics(iterations=None), "iterations", f"{expected}, None came"),
        (metrics(round=1), "round", "a reply to round 2 expected, to 1 came"),
        (metrics(activation_arrays=2), "activation_arrays", "nobody asked for"),
        (tensors(lambda _: []), "header", "an empty list came"),
    ):
        error = refusal(spoil(result), ins=ins)
        assert (error.sender, error.field) == ("client 3", field)
        assert says in error.reason


def test_batches_of_another_size_at_the_limit() -> None:
    exchange = decode(uploaded((1024, 1, 1), count=1026)(HONEST))
    assert [len(batch.labels) for batch in exchange.batches] == [1024, 1, 1]
    np.testing.assert_array_equal(exchange.batches[1].activations, np.ones((1, CUT)))


def holding(samples: int) -> CutShapes:
    """Bound an upload to so many samples of five numbers."""
    return replace(SHAPES, max_upload_mb=samples * 20 / 10**6)


def test_an_upload_may_take_as_many_megabytes_as_the_option_says() -> None:
    assert len(decode(HONEST, shapes=holding(12)).batches) == 3
    error = refusal(HONEST, shapes=holding(11))
    assert (error.sender, error.field) == ("client 3", "num_examples")
    assert error.reason == (
        "activations of 12 samples take 0.00024 MB in float32; max_upload_mb is 0.00022, enough "
        "for 11 samples"
    )


def test_an_endless_epoch_is_refused_before_anything_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adasplit_replies, "decode_activations", pytest.fail)
    endless = metrics(iterations=10**6)(examples(10**9)(HONEST))
    error = refusal(endless)
    assert error.field == "num_examples"
    assert "take 20000 MB in float32; max_upload_mb is 1024, enough for 51200000" in error.reason


def test_an_upload_of_more_samples_than_it_speaks_of_is_bounded_too() -> None:
    error = refusal(uploaded(count=11)(HONEST), shapes=holding(11))
    assert (error.layer, error.field) == ("batch-sizes", "data")
    assert error.reason == "the batches have 12 samples together, at most 11 expected"


def test_who_uploads_nothing_may_train_on_any_number_of_samples() -> None:
    quiet = metrics(activation_arrays=0)(tensors(lambda _: [])(HONEST))
    assert decode(quiet, shapes=holding(1), upload=False).answer.result.num_examples == 12


@given(
    shape=st.lists(st.integers(1, 600), max_size=3).map(tuple), samples=st.integers(1, 2 * 10**6)
)
def test_megabytes_are_turned_into_samples_exactly(shape: tuple[int, ...], samples: int) -> None:
    exact = dense_bytes(samples, shape)
    fitting, short = (CutShapes(shape, 3, 9, mb / 10**6) for mb in (exact, exact - 1))
    assert (fitting.max_samples, short.max_samples) == (samples, samples - 1)


def test_an_activation_without_numbers_counts_as_one() -> None:
    assert dense_bytes(3, (2, 0, 5)) == dense_bytes(3, ()) == 12
    assert CutShapes((0,), 3, 9, 0.00002).max_samples == 5


def test_good_replies_are_split_from_bad_ones_in_order() -> None:
    sent = ExchangePlan.from_config(MESSAGE.config)
    assert sent is not None
    checker = ExchangeChecker(Asked(plans={1: sent, 2: sent, 3: sent}), SHAPES, WEIGHTS)
    answers = [
        Answer(Member(SplitNode(client), client), result)
        for client, result in [(1, HONEST), (2, metrics(round=7)(HONEST)), (3, HONEST)]
    ]
    good, refused = checker.split(answers)
    assert [exchange.client for exchange in good] == [1, 3]
    assert [(each.partition_id, each.reason) for each in refused] == [
        (2, "client 2, field round: a reply to round 1 expected, to 7 came")
    ]


def _weights_of_round_2() -> list[bytes]:
    return WEIGHTS.encode(2)
