"""The client part and head at the server: sent, averaged by hand, taken over, saved."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters
from torch import nn

from adasplit_flwr.weights_payload import encode_weights, named_arrays
from strategies.adasplit_weights import ClientWeights
from tests.strategies.federation import same_bits
from zerofl_flwr.errors import PayloadError, RoundFailedError, SettingsError
from zerofl_flwr.model_arrays import Array


def parts() -> dict[str, nn.Module]:
    client = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    return {"client": client, "head": nn.Linear(1, 2)}


PARTS = parts()


def weights() -> ClientWeights:
    return ClientWeights(PARTS["client"], PARTS["head"])


def uploaded(value: float) -> dict[str, Array]:
    """Return what a client uploads whose floats all have one value."""
    floats = {k: a for k, a in named_arrays(PARTS).items() if a.dtype.kind == "f"}
    return {name: np.full_like(array, value) for name, array in floats.items()}


def test_what_is_held_and_sent() -> None:
    held = weights()
    assert list(held.arrays) == [
        "client.0.weight",
        "client.0.bias",
        "client.1.weight",
        "client.1.bias",
        "client.1.running_mean",
        "client.1.running_var",
        "client.1.num_batches_tracked",
        "head.weight",
        "head.bias",
    ]
    came = held.decode(held.encode(3), sender="server", server_round=3)
    assert "client.1.num_batches_tracked" not in came
    assert same_bits(list(came.values()), [held.arrays[name] for name in came])
    with pytest.raises(PayloadError, match="client 5, field round: round 3 expected, 4 came"):
        held.decode(held.encode(4), sender="client 5", server_round=3)


def test_the_mean_is_weighted_by_samples() -> None:
    held = weights()
    counter = held.arrays["client.1.num_batches_tracked"].copy()
    held.average([(uploaded(1.0), 10), (uploaded(4.0), 20), (uploaded(-2.0), 10)], 1)
    for name, array in held.arrays.items():
        if array.dtype.kind == "f":
            np.testing.assert_array_equal(array, np.full_like(array, 1.75))  # (10 + 80 - 20) / 40
            assert array.dtype == np.float32
        else:
            assert name.endswith("num_batches_tracked")
            np.testing.assert_array_equal(array, counter)


def test_a_mean_that_overflows_changes_nothing() -> None:
    held = weights()
    before = held.arrays
    largest = float(np.finfo(np.float32).max)
    replies = [(uploaded(largest), 2**24 + 1), (uploaded(largest), 2**24 + 1)]
    replies.append(({**uploaded(largest), "head.bias": np.full(2, np.inf, np.float32)}, 1))
    with pytest.raises(RoundFailedError, match="round 7: the mean of the client parts is not fin"):
        held.average(replies, 7)
    assert held.arrays is before


def test_one_clients_weights_are_taken_as_they_are() -> None:
    held = weights()
    came = held.decode(_tensors(uploaded(2.5) | _counter()), sender="client 1", server_round=1)
    held.take(came)
    for name, array in held.arrays.items():
        expected = 0 if name.endswith("num_batches_tracked") else 2.5
        np.testing.assert_array_equal(array, np.full_like(array, expected))
        assert array.flags.owndata or array.base is None


def test_the_modules_are_left_alone() -> None:
    held, before = weights(), named_arrays(PARTS)
    held.average([(uploaded(9.0), 1)], 1)
    assert same_bits(list(named_arrays(PARTS).values()), list(before.values()))


def test_a_state_is_put_back() -> None:
    held, other = weights(), ClientWeights(*parts().values())
    held.average([(uploaded(9.0), 1)], 1)
    other.load_state_arrays(held.state_arrays())
    assert list(other.arrays) == list(held.arrays)
    assert same_bits(list(other.arrays.values()), list(held.arrays.values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.bias": None}, r"do not both have head\.bias: it was saved with another"),
        ({"more": np.zeros(1)}, "do not both have more"),
        ({"head.bias": np.zeros(3, np.float32)}, r"head\.bias .*shape \(3,\); expected .*\(2,\)"),
        ({"head.bias": np.zeros(2)}, r"head\.bias of the state is float64"),
    ],
)
def test_the_state_of_another_network_is_refused(
    change: dict[str, Array | None], message: str
) -> None:
    held = weights()
    before = held.arrays
    changed = {**held.state_arrays(), **change}
    state = {name: array for name, array in changed.items() if array is not None}
    with pytest.raises(SettingsError, match=message):
        held.load_state_arrays(state)
    assert held.arrays is before


def _counter() -> dict[str, Array]:
    return {"client.1.num_batches_tracked": np.array(5)}


def _tensors(arrays: dict[str, Array]) -> list[bytes]:
    ordered = {name: arrays[name] for name in named_arrays(PARTS)}
    return ndarrays_to_parameters(encode_weights(ordered, server_round=1)).tensors
