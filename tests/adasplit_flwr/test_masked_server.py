"""The masked server's training: by hand, and against autograd with torch's Adam."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adasplit_flwr.mask_store import MaskStore
from adasplit_flwr.masked_adam import AdamSettings
from adasplit_flwr.masked_server import MaskedServer, store_for
from adasplit_flwr.server_masks import fresh_mask
from tests.adasplit_flwr.masked_reference import HardReference, Reference
from tests.adasplit_flwr.server_batches import batch, bits, same_bits, small_server
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array

LN3 = math.log(3.0)
ADAM = AdamSettings(learning_rate=0.03, weight_decay=0.02)
LENGTH = 54 + 3 + 6 + 189 + 7 + 18  # without the frozen layer


def part_of(state: dict[str, Array], group: str) -> torch.Tensor:
    """Return weights, exp_avg or exp_avg_sq of a state as one vector."""
    names = [name for name in state if name.startswith(f"{group}/")]
    return torch.cat([torch.from_numpy(state[name]).flatten() for name in names])


def record_of(state: dict[str, Array], client: int) -> torch.Tensor:
    return torch.from_numpy(state[f"masks/record/{client}"])


def steps_of(state: dict[str, Array]) -> dict[int, int]:
    clients, steps = state["masks/clients"].tolist(), state["masks/steps"].tolist()
    return dict(zip(clients, steps, strict=True))


def test_one_soft_step_by_hand() -> None:
    layer = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0], [4.0]]))
    mask = torch.tensor([0.0, LN3], dtype=torch.float64)  # sigmoid 1/2 and 3/4
    store = MaskStore(2, torch.float64, make=lambda client: mask)
    # With epsilon 1 the size of the first step is lr * g / (|g| + 1), and tells the gradient's.
    adam = AdamSettings(0.1, beta1=0.9, beta2=0.999, epsilon=1.0, weight_decay=0.01)
    server = MaskedServer(layer, store, mask_penalty=0.1, optimizer=adam)
    one, zero = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([0])
    # Logits 1 and 3: loss ln(1 + e^2), gradients -g and g of the logits, g = e^2 / (1 + e^2).
    outcome = server.train_batch(5, one, zero, input_gradient=True)
    g = 0.880797077977882
    assert outcome.loss == pytest.approx(2.126928011042972, rel=1e-14)
    assert outcome.correct == 0
    assert outcome.gradient is not None
    assert outcome.gradient.tolist() == [[pytest.approx(-g * 1 + g * 3)]]
    weight_gradients = [-0.420398538988941, 0.700597808483412]  # -g/2 + .02, 3g/4 + .04
    # (-2g + .1) / 4, (4g + .1) * 3/16 + .01 ln 3
    mask_gradients = [-0.415398538988941, 0.690333931470093]
    state = server.state_arrays()
    assert state["weights/weight"].flatten().tolist() == pytest.approx(
        [
            2 + 0.1 * 0.420398538988941 / 1.420398538988941,
            4 - 0.1 * 0.700597808483412 / 1.700597808483412,
        ]
    )
    assert part_of(state, "exp_avg").tolist() == pytest.approx([x / 10 for x in weight_gradients])
    assert part_of(state, "exp_avg_sq").tolist() == pytest.approx(
        [x**2 / 1000 for x in weight_gradients]
    )
    record = record_of(state, 5)
    assert record[0].tolist() == pytest.approx(
        [
            0.1 * 0.415398538988941 / 1.415398538988941,
            LN3 - 0.1 * 0.690333931470093 / 1.690333931470093,
        ]
    )
    assert record[1].tolist() == pytest.approx([x / 10 for x in mask_gradients])
    assert record[2].tolist() == pytest.approx([x**2 / 1000 for x in mask_gradients])
    assert (int(state["steps"]), steps_of(state)) == (1, {5: 1})


def test_soft_masks_against_autograd_and_torchs_adam() -> None:
    model, order = small_server(), [0, 1, 1, 2, 0, 2, 1, 0, 0, 2] * 2
    server = MaskedServer(model, None, mask_penalty=0.05, optimizer=ADAM, seed=4)
    masks = {
        client: fresh_mask(client, length=LENGTH, dtype=torch.float64, seed=4)
        for client in range(3)
    }
    reference = Reference(model, masks, penalty=0.05, lr=0.03, wd=0.02)
    for number, client in enumerate(order):
        if number == 10:  # a schedule sets one rate for all
            server.learning_rate = 0.01
            for adam in (reference.adam, *reference.mask_adams.values()):
                adam.param_groups[0]["lr"] = 0.01
        loss = server.train_batch(client, *batch(number)).loss
        assert loss == pytest.approx(reference.step(client, *batch(number)), rel=1e-12)
    state = server.state_arrays()
    weights = torch.cat([weight.detach().flatten() for weight in reference.weights.values()])
    assert close(part_of(state, "weights"), weights)
    assert close(part_of(state, "exp_avg"), reference.moments(None, "exp_avg"))
    assert close(part_of(state, "exp_avg_sq"), reference.moments(None, "exp_avg_sq"))
    assert int(state["steps"]) == 20
    assert steps_of(state) == {0: 8, 1: 6, 2: 6}
    for client in range(3):
        mask, exp_avg, exp_avg_sq = record_of(state, client)
        assert close(mask, reference.mask(client))
        assert close(exp_avg, reference.moments(client, "exp_avg"))
        assert close(exp_avg_sq, reference.moments(client, "exp_avg_sq"))
    for name, buffer in reference.model.named_buffers():
        assert close(torch.from_numpy(state[f"untrained/{name}"]), buffer)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-12, atol=1e-13)


def test_without_masks_it_is_torchs_adam_on_the_plain_module() -> None:
    model = small_server()
    server = MaskedServer(model, None, masks="none", optimizer=ADAM)
    plain = copy.deepcopy(model)
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    adam = torch.optim.Adam(trained, lr=0.03, weight_decay=0.02)
    for number in range(20):
        activations, labels = batch(number)
        adam.zero_grad()
        loss = nn.functional.cross_entropy(plain(activations), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        outcome = server.train_batch(number % 3, activations, labels)
        assert outcome.loss == pytest.approx(float(loss.detach()), rel=1e-12)
    state, submodel = server.state_arrays(), server.submodel(0)
    assert all(close(submodel[name], value) for name, value in plain.state_dict().items())
    moments = torch.cat([adam.state[parameter]["exp_avg"].flatten() for parameter in trained])
    assert close(part_of(state, "exp_avg"), moments)
    assert not any(name.startswith("masks/") for name in state)


def test_hard_masks_against_a_plain_loop() -> None:
    model = small_server()
    server = MaskedServer(model, None, masks="hard", mask_penalty=0.05, optimizer=ADAM, seed=4)
    masks = {c: fresh_mask(c, length=LENGTH, dtype=torch.float64, seed=4) for c in range(2)}
    reference = HardReference(model, masks, penalty=0.05, lr=0.03, wd=0.02)
    for number, client in enumerate([0, 1, 1, 0, 1, 0, 0, 0, 1, 1]):
        loss = server.train_batch(client, *batch(number)).loss
        assert loss == pytest.approx(reference.step(client, *batch(number)), rel=1e-12)
    state = server.state_arrays()
    for group, expected in zip(
        ("weights", "exp_avg", "exp_avg_sq"), reference.weights, strict=True
    ):
        assert close(part_of(state, group), expected)
    assert (int(state["steps"]), steps_of(state)) == (10, {0: 5, 1: 5})
    for client, record in reference.masks.items():
        assert close(record_of(state, client), record)
        assert server.density(client) == float((record[0] > 0).double().mean())


def test_what_only_one_client_keeps_stays_bit_by_bit_through_the_others_steps() -> None:
    server = MaskedServer(small_server(), None, masks="hard", optimizer=ADAM)
    for number in range(5):
        server.train_batch(0, *batch(number))
    before, only = server.state_arrays(), server.kept(0)
    moved = torch.zeros(LENGTH, dtype=torch.bool)
    for number in range(30):
        client = 1 + number % 2
        only &= ~server.kept(client)
        moved |= server.kept(client)
        server.train_batch(client, *batch(100 + number))
    after = server.state_arrays()
    assert int(only.sum()) > LENGTH // 20
    for group in ("weights", "exp_avg", "exp_avg_sq"):
        one, other = bits(part_of(before, group)), bits(part_of(after, group))
        assert (one[only] == other[only]).all()
        assert (one[moved] != other[moved]).mean() > 0.99
    assert (bits(record_of(before, 0)) == bits(record_of(after, 0))).all()


@pytest.mark.parametrize("masks", ["soft", "hard"])
def test_the_penalty_draws_at_the_active_mask_only(masks: str) -> None:
    idle, active = [], []
    for penalty in (0.0, 10.0):
        adam = AdamSettings(epsilon=1.0)  # so that steps tell the gradient's size
        server = MaskedServer(
            small_server(), None, masks=masks, mask_penalty=penalty, optimizer=adam
        )
        server.train_batch(0, *batch(0))
        before = record_of(server.state_arrays(), 0)
        loss = server.train_batch(1, *batch(1)).loss
        after = server.state_arrays()
        assert (bits(before) == bits(record_of(after, 0))).all()
        idle.append(record_of(after, 0)[0])
        active.append(record_of(after, 1)[1])
        assert loss < 10.0  # it is not in the loss that is told
    fresh = fresh_mask(1, length=LENGTH, dtype=torch.float64, seed=0)
    slope = torch.sigmoid(fresh) * (1 - torch.sigmoid(fresh))
    assert (active[1] - active[0] - 0.1 * 10 * slope).abs().max() < 0.05  # the weights moved a bit
    assert (idle[1] < idle[0]).all()


@pytest.mark.parametrize("masks", ["soft", "hard", "none"])
def test_the_input_gradient_is_autograds(masks: str) -> None:
    model = small_server()
    server = MaskedServer(model, None, masks=masks, mask_penalty=3.0)
    activations, labels = batch(0)
    plain = copy.deepcopy(model)
    plain.load_state_dict(server.submodel(2))
    leaf = activations.clone().requires_grad_()
    loss = nn.functional.cross_entropy(plain(leaf), labels)
    [expected] = torch.autograd.grad(loss, [leaf])
    outcome = server.train_batch(2, activations, labels, input_gradient=True)
    assert outcome.gradient is not None
    assert torch.equal(outcome.gradient, expected)
    assert outcome.correct == int((plain.train()(activations).argmax(1) == labels).sum())
    assert server.train_batch(2, activations, labels).gradient is None
    assert torch.equal(activations, batch(0)[0])
    assert not activations.requires_grad


def test_it_trains_where_gradients_are_switched_off() -> None:
    outcomes = []
    for enabled in (True, False):
        server = MaskedServer(small_server(), None)
        with torch.set_grad_enabled(enabled):
            server.train_batch(0, *batch(0))
        outcomes.append(server.state_arrays())
    assert same_bits(*outcomes)


def test_the_first_layer_may_work_in_place() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 3)).double()
    server = MaskedServer(model, None)
    activations, labels = batch(0)
    server.train_batch(0, activations, labels, input_gradient=True)
    server.predict(0, activations)
    assert torch.equal(activations, batch(0)[0])


def test_single_precision_trains_in_single_precision() -> None:
    server = MaskedServer(small_server(torch.float32), None)
    activations, labels = batch(0, torch.float32)
    losses = [server.train_batch(0, activations, labels).loss for _ in range(30)]
    assert losses[-1] < losses[0]
    state = server.state_arrays()
    assert {str(array.dtype) for name, array in state.items() if "weights" in name} == {"float32"}
    assert state["masks/record/0"].dtype == np.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masks": "softly"}, "unknown masks 'softly'; did you mean 'soft'"),
        ({"mask_penalty": -1.0}, "mask_penalty is -1.0; it must not be negative"),
        ({"mask_penalty": math.nan}, "mask_penalty is nan"),
        ({"masks": "none", "store": store_for(small_server())}, "masks is none, so there is noth"),
        ({"store": store_for(nn.Linear(1, 1))}, "holds masks of 2 elements in torch.float32; the"),
        ({"model": nn.ReLU()}, "has no trainable parameters"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        MaskedServer(**({"model": small_server(), "store": None} | options))


@pytest.mark.parametrize("rate", [-1e-3, math.nan, math.inf])
def test_the_learning_rate_may_fall_to_zero_and_not_below(rate: float) -> None:
    server = MaskedServer(small_server(), None)
    assert server.learning_rate == 1e-3
    server.learning_rate = 0.0
    before = server.submodel(0)
    server.train_batch(0, *batch(0))
    after = server.submodel(0)
    assert all(torch.equal(before[name], after[name]) for name in ("0.weight", "4.bias"))
    with pytest.raises(SettingsError, match=f"learning_rate is {rate}; it must not be negative"):
        server.learning_rate = rate
