"""The server's module behind a mask: what it computes, and what is left untouched."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from adasplit_flwr.server_part import ServerPart
from tests.adasplit_flwr.server_batches import batch, small_server


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_the_module_that_came_stays_as_it_is() -> None:
    model = small_server()
    before = state_of(model)
    part = ServerPart(model, "soft")
    part.put_on(torch.zeros(part.weights.length, dtype=torch.float64))
    part(batch(0)[0], training=True)
    part.weights.tensors[0].zero_()
    assert equal(state_of(model), before)


def test_effective_weights_by_hand() -> None:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 4.0]]))
        layer.bias.fill_(6.0)
    part = ServerPart(layer, "hard")
    part.put_on(torch.tensor([1.0, -1.0, 0.5]))
    assert part(torch.tensor([[3.0, 5.0]]), training=False).tolist() == [[12.0]]
    assert {name: tensor.tolist() for name, tensor in part.state_dict().items()} == {
        "weight": [[2.0, 0.0]],
        "bias": [6.0],
    }
    soft = ServerPart(layer, "soft")
    soft.put_on(torch.zeros(3))
    assert soft(torch.tensor([[3.0, 5.0]]), training=False).tolist() == [[16.0]]
    plain = ServerPart(layer, "none")
    assert plain(torch.tensor([[3.0, 5.0]]), training=False).tolist() == [[32.0]]


def test_gradients_are_with_respect_to_effective_weights_and_inputs() -> None:
    part = ServerPart(nn.Linear(2, 1), "hard")
    part.put_on(torch.tensor([1.0, -1.0, 1.0]))
    inputs = torch.tensor([[3.0, 5.0]], requires_grad=True)
    weights, given = part.gradients(part(inputs, training=True).sum(), [inputs])
    assert [gradient.tolist() for gradient in weights] == [[[3.0, 5.0]], [1.0]]
    [gradient] = given
    assert gradient[0, 1] == 0.0  # that weight is masked
    assert gradient[0, 0] == part.weights.tensors[0][0, 0]


def test_a_parameter_that_takes_no_part_has_gradient_zero() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    part = ServerPart(model, "none")
    gradients, _ = part.gradients(part(torch.ones(1, 2), training=True).sum())
    assert list(part.weights.shapes) == ["unused", "0.weight", "0.bias"]
    assert gradients[0].tolist() == [0.0, 0.0, 0.0]


def test_a_shared_parameter_is_masked_under_both_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    part = ServerPart(model, "soft")
    part.put_on(torch.zeros(4))
    state = part.state_dict()
    half = model.get_parameter("0.weight").detach() / 2
    assert torch.equal(state["0.weight"], half)
    assert torch.equal(state["1.weight"], half)
    inputs = torch.tensor([[1.0, -2.0]])
    plain = copy.deepcopy(model)
    plain.load_state_dict(state)
    assert torch.equal(part(inputs, training=False), plain(inputs))


def test_untrained_state_is_buffers_and_frozen_parameters() -> None:
    part = ServerPart(small_server(), "soft")
    assert list(part.untrained_state()) == [
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "6.weight",
        "6.bias",
    ]


def test_memory_that_is_not_contiguous_is_masked_in_c_order() -> None:
    model = nn.Conv2d(2, 2, 2, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    part = ServerPart(model, "hard")
    mask = torch.full((16,), -1.0)
    mask[5] = 1.0
    part.put_on(mask)
    effective = part.state_dict()["weight"]
    assert effective[0, 1, 0, 1] == model.weight[0, 1, 0, 1]
    assert effective.count_nonzero() == 1
    assert not model.weight.is_contiguous()


def train_and_fail(part: ServerPart) -> None:
    with part.buffers_restored_on_error():
        part(batch(0)[0], training=True)
        raise ValueError("odd")


def test_buffers_come_back_when_something_is_raised() -> None:
    part = ServerPart(small_server(), "none")
    before = {name: tensor.clone() for name, tensor in part.untrained_state().items()}
    with pytest.raises(ValueError, match="odd"):
        train_and_fail(part)
    assert equal(part.untrained_state(), before)
    with part.buffers_restored_on_error():
        part(batch(0)[0], training=True)
    assert int(part.untrained_state()["1.num_batches_tracked"]) == 1
