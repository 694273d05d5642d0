"""What sparse layers keep for the backward pass, refuse, and carry through copies and modes."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.zerofl_flwr.swat_reference import (
    a_linear,
    batch,
    keep_top,
    make_sparse,
    run,
)
from zerofl_flwr.errors import SelectionError
from zerofl_flwr.sparsify import freeze_masks, sparsify, unfreeze_masks
from zerofl_flwr.swat import SparseConv2d, SparseLinear, sparse_layers


def saved_for_backward(layer: nn.Module, activations: torch.Tensor) -> list[torch.Tensor]:
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(activations)
    return saved


def test_only_the_kept_activations_are_saved() -> None:
    torch.manual_seed(0)
    layer = make_sparse(nn.Conv2d(8, 4, 3), "0.95", "0.95", "0")
    activations = torch.randn(4, 8, 16, 16, requires_grad=True)  # 8,192 entries, 410 kept
    saved = saved_for_backward(layer, activations)
    values, positions = (tensor for tensor in saved if tensor.dim() == 1)
    assert values.dtype is torch.float32
    assert positions.dtype is torch.int32
    assert values.numel() == positions.numel() == 410
    # The masked weight is all else, and no saved tensor hides a larger storage.
    assert sum(tensor.untyped_storage().nbytes() for tensor in saved) == 410 * 8 + 288 * 4


def test_zeros_within_the_top_are_not_saved() -> None:
    layer = make_sparse(nn.Conv2d(8, 4, 3), "0.5", "0.5", "0")
    activations = torch.zeros(4, 8, 16, 16)
    activations.view(-1)[::100] = 1.0  # 82 ones, though 4,096 may stay
    saved = saved_for_backward(layer, activations)
    assert [tensor.numel() for tensor in saved] == [82, 82]  # no input gradient, so no weight


def test_nothing_is_saved_for_gradients_that_nobody_needs() -> None:
    layer = a_linear("0.5", "0.5", "0")
    layer.weight.requires_grad_(False)
    assert [tensor.shape for tensor in saved_for_backward(layer, batch(4, 6).requires_grad_())] == [
        (5, 6)
    ]
    inputs = batch(4, 6).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(inputs).sum(), inputs)
    expected = torch.ones(4, 5).double() @ keep_top(layer.weight, "0.5")
    torch.testing.assert_close(gradient, expected)
    assert layer.bias.grad is None


def test_backward_through_weights_changed_meanwhile_is_an_error_as_in_torch() -> None:
    layer = a_linear("0.5", "0.5", "0")
    output = layer(batch(4, 6).requires_grad_())
    with torch.no_grad():
        layer.weight.add_(1)
    layer(batch(4, 6).requires_grad_())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_a_frozen_mask_replaces_the_top_and_stops_the_rest() -> None:
    layer = a_linear("0.9", "0", "0", period=10)
    mask = torch.arange(30).reshape(5, 6) % 3 == 0
    freeze_masks(layer, {"weight": mask})
    activations, gradient = batch(4, 6), batch(4, 5, seed=2)
    for _ in range(2):
        output, input_gradient, weight_gradient, _ = run(layer, activations, gradient)
        weight = layer.weight.detach() * mask
        torch.testing.assert_close(output, (activations @ weight.t() + layer.bias).detach())
        torch.testing.assert_close(input_gradient, gradient @ weight)
        torch.testing.assert_close(weight_gradient, gradient.t() @ activations * mask)
        with torch.no_grad():
            layer.weight.add_(batch(5, 6, seed=3))
            expected = activations @ (layer.weight * mask).t() + layer.bias
            torch.testing.assert_close(layer(activations), expected)
    unfreeze_masks(layer)
    with torch.no_grad():
        expected = activations @ keep_top(layer.weight, "0.9").t() + layer.bias
        torch.testing.assert_close(layer(activations), expected)


def test_a_frozen_mask_holds_at_sparsity_zero_too() -> None:
    layer = a_linear("0", "0", "0")
    freeze_masks(layer, {"weight": torch.zeros(5, 6, dtype=torch.bool)})
    torch.testing.assert_close(layer(batch(4, 6)), layer.bias.expand(4, 5))


@pytest.mark.parametrize("when", ["first", "later", "evaluation"])
def test_nan_is_an_error_that_names_the_layer(when: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 2))
    sparsify(model, 0.5)
    if when == "later":
        model(torch.ones(2, 3))
    broken = torch.full((3,), torch.nan)
    with torch.no_grad():
        model.get_parameter("1.0.weight")[0] = broken
    with (
        torch.set_grad_enabled(when != "evaluation"),
        pytest.raises(SelectionError, match=r"layer 1\.0, weights: found NaN"),
    ):
        model(torch.ones(2, 3))


def test_nan_among_activations_and_gradients_names_the_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    sparsify(model, 0.5, gradient_sparsity=0.5)
    with pytest.raises(SelectionError, match="layer 1, activations: found NaN"):
        model(torch.full((2, 3), torch.nan))
    with pytest.raises(SelectionError, match="layer 1, output gradients: found NaN"):
        (model(torch.ones(2, 3)) * torch.nan).sum().backward()


def test_copies_and_checkpoints() -> None:
    layer = a_linear("0.5", "0.5", "0.5", period=10)
    freeze_masks(layer, {"weight": torch.ones(5, 6, dtype=torch.bool)})
    layer(batch(4, 6)).sum().backward()
    twin = copy.deepcopy(layer)
    assert type(twin) is SparseLinear
    assert torch.equal(twin(batch(4, 6)), layer(batch(4, 6)))
    with torch.no_grad():
        twin.weight.zero_()
    assert layer.weight.count_nonzero() == 30
    assert list(layer.state_dict()) == ["weight", "bias"]
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    plain = nn.Linear(6, 5).double()
    plain.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(plain.weight, layer.weight)


def test_the_frozen_mask_moves_with_the_module() -> None:
    layer = a_linear("0.5", "0.5", "0")
    freeze_masks(layer, {"weight": torch.ones(5, 6, dtype=torch.bool)})
    layer.to("meta", torch.float32)
    assert layer.frozen_mask is not None
    assert layer.frozen_mask.device.type == "meta"
    assert layer.frozen_mask.dtype is torch.bool


def test_double_backward_is_refused() -> None:
    layer = a_linear("0.5", "0.5", "0")
    inputs = batch(4, 6).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(inputs).pow(2).sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()  # type: ignore[no-untyped-call]


def test_the_layer_says_how_sparse_it_is() -> None:
    layer = make_sparse(nn.Conv2d(3, 4, 3), "0.95", "0", "0")
    assert repr(layer) == "SparseConv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), sparsity=0.95)"


def test_sparse_layers_are_found_under_one_or_all_names() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(nn.Linear(3, 3), shared, shared, nn.Linear(3, 3))
    sparsify(model, 0.5)
    assert list(sparse_layers(model)) == ["1"]
    assert list(sparse_layers(model, every_name=True)) == ["1", "2"]
    assert isinstance(make_sparse(nn.Conv2d(1, 1, 3), "0", "0", "0"), SparseConv2d)


def test_activation_checkpointing_with_exact_selection() -> None:
    layer = a_linear("0.7", "0.7", "0", period=1)
    inputs, gradient = batch(4, 6), batch(4, 5, seed=2)
    expected = run(layer, inputs, gradient)[2]
    output: Any = checkpoint(layer, inputs.requires_grad_(), use_reentrant=False)
    output.backward(gradient)
    torch.testing.assert_close(layer.weight.grad, expected)
