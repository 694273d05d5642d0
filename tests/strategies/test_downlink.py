"""The global model goes out without loss, sparse where that is smaller, and frozen when told to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.common import (
    EvaluateIns,
    FitIns,
    Parameters,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies.downlink import GlobalModel
from tests.strategies.federation import Node, Toy, f32, received, same_bits, toy
from zerofl_flwr.errors import RoundFailedError, SettingsError
from zerofl_flwr.payload import SparseArray, TensorSpec, decode, is_payload
from zerofl_flwr.settings import RoundPlan, ZeroFLSettings

Array = NDArray[Any]


def plan(server_round: int = 2, **options: Any) -> RoundPlan:
    return ZeroFLSettings(**{"sparsity": 0.9, "mask_ratio": 0.0, **options}).plan(server_round)


FROZEN = plan(2, freeze_mask_after_round=1)


def loaded(model: Toy, *, sparse_downlink: bool = True) -> GlobalModel:
    """Return a global model that has had one good reply."""
    global_model = GlobalModel(sparse_downlink=sparse_downlink)
    global_model.load(model.parameters, plan(1))
    global_model.learn(model.names, model.masked_positions)
    return global_model


def thinned(model: Toy, density: float, seed: int = 3) -> Toy:
    """Set most weights of the masked layers to zero, some of them to minus zero."""
    generator = np.random.default_rng(seed)
    arrays = dict(model.arrays)
    for name in model.masked:
        draw = generator.random(arrays[name].shape)
        zeros = np.where(draw < 0.99, 0.0, -0.0).astype(arrays[name].dtype)
        arrays[name] = np.where(draw < density, arrays[name], zeros)
    return Toy(arrays, model.masked)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_sparse_model_travels_as_csr_without_loss(dtype: str) -> None:
    model = thinned(toy(dtype, batch_norm=True, width=50), 0.2)
    assert any((np.signbit(a) & (a == 0)).any() for a in model.values if a.dtype.kind == "f")
    sent = loaded(model).downlink(model.parameters, plan(7))
    payload = decode(
        sent.tensors, [TensorSpec(a.shape, a.dtype) for a in model.values], sender="server"
    )
    assert payload.meta == {"round": 7}
    assert [entry.name for entry in payload.entries] == model.names
    arrays, patterns = received(sent)
    assert list(patterns) == model.masked_positions
    assert same_bits(arrays, model.values)
    assert sum(map(len, sent.tensors)) < 0.8 * sum(map(len, model.parameters.tensors))


@pytest.mark.parametrize("density", [0.0, 0.5, 0.7, 0.8, 1.0])
def test_the_downlink_is_never_larger_than_the_dense_list(density: float) -> None:
    wide = np.random.default_rng(0).normal(size=(8, 1000)).astype(np.float32) + np.float32(10)
    wide.reshape(-1)[: round((1 - density) * wide.size)] = 0
    parameters = ndarrays_to_parameters([wide, np.ones(3, np.float32)])
    model = GlobalModel(sparse_downlink=True)
    model.load(parameters, plan(1))
    sent = model.downlink(parameters, plan(1))
    # 6 bytes a value as CSR, 4 as dense: it pays below two thirds.
    assert is_payload(sent.tensors) == (density < 0.66)
    assert (sent is parameters) == (density > 0.66)
    assert same_bits(received(sent)[0], parameters_to_ndarrays(parameters))


@given(st.integers(0, 2**32), st.floats(0, 1), st.sampled_from(["float16", "float32", "float64"]))
def test_any_model_comes_back_bit_for_bit(seed: int, density: float, dtype: str) -> None:
    model = thinned(toy(dtype, batch_norm=True, seed=seed, width=10), density, seed)
    sent = loaded(model).downlink(model.parameters, plan(1))
    assert same_bits(received(sent)[0], model.values)


def test_off_sends_flowers_own_list() -> None:
    model = thinned(toy(width=50), 0.1)
    assert is_payload(loaded(model).downlink(model.parameters, plan(1)).tensors)
    sent = loaded(model, sparse_downlink=False).downlink(model.parameters, plan(1))
    assert sent.tensors == model.parameters.tensors
    assert not is_payload(sent.tensors)


def test_a_model_too_small_for_headers_goes_out_dense() -> None:
    model = thinned(toy(), 0.1)
    assert loaded(model).downlink(model.parameters, plan(1)).tensors == model.parameters.tensors


def test_vectors_and_integers_stay_dense() -> None:
    arrays: list[Array] = [f32([0] * 500), np.zeros((20, 20), np.int64), f32(np.eye(30))]
    parameters = ndarrays_to_parameters(arrays)
    model = GlobalModel(sparse_downlink=True)
    model.load(parameters, plan(1))
    sent, patterns = received(model.downlink(parameters, plan(1)))
    assert list(patterns) == [2]
    assert same_bits(sent, arrays)


def test_layers_have_positions_for_names_until_a_reply_names_them() -> None:
    model = toy()
    global_model = GlobalModel(sparse_downlink=True)
    global_model.load(model.parameters, plan(1))
    assert global_model.names == ["0", "1", "2", "3"]
    assert global_model.masked == []
    global_model.learn(["0", "1", "2", "3"], [])  # a client with the mod that masks nothing
    global_model.learn(model.names, [0, 2])
    global_model.learn(["0", "1", "2", "3"], [])
    global_model.learn(["other", "names", "come", "later"], [0])
    global_model.load(model.parameters, plan(2))
    assert global_model.names == model.names
    assert global_model.masked == [0, 2]


def test_the_first_client_that_masks_other_layers_is_named_once(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    model = toy()
    global_model = loaded(model)  # masks conv.weight and fc.weight
    global_model.learn(model.names, [2, 0], sender="client 1")
    global_model.learn(model.names, [], sender="client 2")
    assert "masks" not in flower_log.text
    global_model.learn(model.names, [0, 1], sender="client 3")
    assert "client 3 masks conv.bias besides, and does not mask fc.weight," in flower_log.text
    told = flower_log.text
    global_model.learn(model.names, [0, 1, 2], sender="client 4")
    assert flower_log.text == told
    assert global_model.masked == [0, 2]


def test_a_model_that_was_never_loaded_can_go_out() -> None:
    model = thinned(toy(width=50), 0.1)
    arrays, _ = received(GlobalModel(sparse_downlink=True).downlink(model.parameters, plan(1)))
    assert same_bits(arrays, model.values)


def test_specs_are_the_models() -> None:
    model = toy("float16", batch_norm=True)
    assert loaded(model).specs == [TensorSpec(a.shape, a.dtype) for a in model.values]


def test_freezing_keeps_the_top_k_of_the_broadcast_weights() -> None:
    weights = f32([[0, -5, 1, 4], [2, -3, 0.5, 5], [1, 1, 1, 1]])
    parameters = ndarrays_to_parameters([weights, f32([7])])
    model = GlobalModel(sparse_downlink=True)
    model.load(parameters, plan(1, sparsity=0.75))
    model.learn(["w", "b"], [0])
    frozen = plan(2, sparsity=0.75, freeze_mask_after_round=1)
    pruned = model.load(parameters, frozen)
    # A quarter of 12 are 3: -5, 5, and 4.
    expected = f32([[0, -5, 0, 4], [0, 0, 0, 5], [0, 0, 0, 0]])
    assert model.patterns[0].tolist() == [1, 3, 7]
    assert model.pattern_sizes == {0: 3}
    assert same_bits(model.arrays, [expected, f32([7])])
    assert same_bits(parameters_to_ndarrays(pruned), model.arrays)


@pytest.mark.parametrize("sparse_downlink", [False, True])
def test_frozen_layers_always_travel_as_csr_with_their_zeros(sparse_downlink: bool) -> None:
    model = toy(batch_norm=True)
    global_model = loaded(model, sparse_downlink=sparse_downlink)
    frozen = plan(2, sparsity=0.1, freeze_mask_after_round=1)  # CSR is larger than dense here
    global_model.load(model.parameters, frozen)
    arrays = [array.copy() for array in global_model.arrays]
    some = global_model.patterns[0][:5]
    arrays[0].reshape(-1)[some] = 0
    sent = global_model.downlink(ndarrays_to_parameters(arrays), frozen)
    decoded, patterns = received(sent)
    assert same_bits(decoded, arrays)
    assert set(patterns) == {0, model.names.index("fc.weight")}
    for position, pattern in global_model.patterns.items():
        assert patterns[position].tolist() == pattern.tolist()


def test_frozen_zeros_are_cut_out_of_whatever_goes_out() -> None:
    model = toy()
    global_model = loaded(model)
    global_model.load(model.parameters, FROZEN)
    pattern = global_model.patterns[0].tolist()
    sent, patterns = received(global_model.downlink(model.parameters, FROZEN))
    assert patterns[0].tolist() == pattern
    assert np.count_nonzero(sent[0]) == len(pattern) == 11  # a tenth of 108, rounded up


def test_nothing_but_frozen_layers_travels_as_csr_then() -> None:
    # A client would take any other CSR for a pattern.
    model = thinned(toy(width=50), 0.1)
    model.arrays["fc.weight"][...] = 0
    global_model = GlobalModel(sparse_downlink=True)
    global_model.load(model.parameters, plan(1))
    global_model.learn(model.names, [0])
    global_model.load(model.parameters, FROZEN)
    _, patterns = received(global_model.downlink(model.parameters, FROZEN))
    assert list(patterns) == [0]


def test_memory_order_of_the_model_does_not_matter() -> None:
    weights = f32([[0, -5, 1, 4], [2, -3, 0.5, 5], [1, 1, 1, 1]])
    sent = []
    for array in (weights, np.asfortranarray(weights)):
        parameters = ndarrays_to_parameters([array])
        model = GlobalModel(sparse_downlink=True)
        model.load(parameters, plan(1))
        model.learn(["w"], [0])
        model.load(parameters, plan(2, sparsity=0.75, freeze_mask_after_round=1))
        assert model.arrays[0].tolist() == [[0, -5, 0, 4], [0, 0, 0, 5], [0, 0, 0, 0]]
        sent.append(received(model.downlink(parameters, FROZEN))[0])
    assert same_bits(*sent)


def test_the_pattern_stays_when_weights_and_sparsity_change() -> None:
    model, other = toy(), toy(seed=9)
    global_model = loaded(model)
    global_model.load(model.parameters, FROZEN)
    before = {position: pattern.copy() for position, pattern in global_model.patterns.items()}
    global_model.load(other.parameters, plan(3, sparsity=0.5, freeze_mask_after_round=1))
    for position, pattern in before.items():
        np.testing.assert_array_equal(global_model.patterns[position], pattern)
        assert set(np.flatnonzero(global_model.arrays[position])) <= set(pattern)


def test_a_round_that_is_not_frozen_has_no_patterns() -> None:
    model = toy()
    global_model = loaded(model)
    global_model.load(model.parameters, FROZEN)
    global_model.load(model.parameters, plan(1, freeze_mask_after_round=1))  # a second run
    assert global_model.patterns == {}
    assert same_bits(global_model.arrays, model.values)


def test_freezing_before_a_layer_is_known_to_be_masked_is_an_error() -> None:
    global_model = GlobalModel(sparse_downlink=True)
    with pytest.raises(RoundFailedError, match=r"round 2: .*no reply so far had a masked layer"):
        global_model.load(toy().parameters, FROZEN)


def test_statistics_take_the_mean_and_integers_stay() -> None:
    model = toy(batch_norm=True)
    global_model = loaded(model)
    new = [np.full_like(array, 9) for array in model.values]
    mean = [np.full_like(array, 5) for array in model.values]
    kept = dict(zip(model.names, global_model.with_kept(new, mean), strict=True))
    assert {name: float(array.reshape(-1)[0]) for name, array in kept.items()} == {
        "conv.weight": 9,
        "conv.bias": 9,
        "bn.running_mean": 5,
        "bn.running_var": 5,
        "bn.num_batches_tracked": 7,
        "fc.weight": 9,
        "fc.bias": 9,
    }
    without_mean = dict(zip(model.names, global_model.with_kept(new, None), strict=True))
    assert without_mean["bn.running_var"][0] == 9
    assert int(without_mean["bn.num_batches_tracked"]) == 7


@pytest.mark.parametrize("kind", [FitIns, EvaluateIns])
def test_instructions_go_out_with_the_plan_each_model_encoded_once(
    kind: type[FitIns] | type[EvaluateIns], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = thinned(toy(width=50), 0.1), thinned(toy(seed=5, width=50), 0.1)
    global_model = loaded(model)
    downlink, encoded = global_model.downlink, []

    def counting(parameters: Parameters, round_plan: RoundPlan) -> Parameters:
        encoded.append(parameters)
        return downlink(parameters, round_plan)

    monkeypatch.setattr(global_model, "downlink", counting)
    parameters, own = model.parameters, other.parameters
    shared: Any = kind(parameters, {"rate": 0.1})
    pairs: list[tuple[Any, Any]] = [
        (Node(0), shared),
        (Node(1), shared),
        (Node(2), kind(parameters, {"rate": 0.2, "zerofl-rule": "mine"})),
        (Node(3), kind(own, {})),
    ]
    sent = global_model.outgoing(pairs, plan(4))
    assert [client for client, _ in sent] == [client for client, _ in pairs]
    assert len(encoded) == 2
    first, second, third, fourth = (instructions for _, instructions in sent)
    assert first is second
    assert type(first) is kind
    assert first.parameters is third.parameters
    assert first.config == {"rate": 0.1, **plan(4).to_config()}
    assert third.config == {"rate": 0.2, **plan(4).to_config()}
    assert shared.config == {"rate": 0.1}
    assert same_bits(received(first.parameters)[0], model.values)
    assert same_bits(received(fourth.parameters)[0], other.values)


def test_state_goes_to_another_object() -> None:
    model = toy(batch_norm=True)
    global_model = loaded(model)
    global_model.load(model.parameters, FROZEN)
    state = global_model.state_arrays()
    assert json.loads(state["names"].tobytes()) == model.names
    other = GlobalModel(sparse_downlink=True)
    other.load_state_arrays(state)
    assert (other.names, other.masked) == (global_model.names, global_model.masked)
    other.load(model.parameters, FROZEN)
    assert same_bits(other.arrays, global_model.arrays)
    assert other.pattern_sizes == global_model.pattern_sizes


def test_another_objects_state_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"not ZeroFL's state: \['masked', 'names'\]"):
        GlobalModel(sparse_downlink=True).load_state_arrays({"momentum": np.zeros(3)})


def test_a_pattern_may_keep_nothing() -> None:
    model = toy()
    global_model = loaded(model)
    nothing = plan(2, sparsity=1.0, freeze_mask_after_round=1)
    global_model.load(model.parameters, nothing)
    assert global_model.pattern_sizes == {0: 0, 2: 0}
    sent = global_model.downlink(model.parameters, nothing)
    decoded, patterns = received(sent)
    assert [patterns[position].size for position in (0, 2)] == [0, 0]
    assert not decoded[0].any()
    assert isinstance(decode(sent.tensors, None, sender="s").entries[0].data, SparseArray)
