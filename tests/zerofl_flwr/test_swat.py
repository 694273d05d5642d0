"""Sparse layers against an independent masked autograd reference, in float64."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zerofl_flwr.errors import SelectionError
from zerofl_flwr.sparsify import freeze_masks, set_sparsity, sparsify, unfreeze_masks
from zerofl_flwr.swat import SparseConv2d, SparseLayer, SparseLinear, sparse_layers

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(7, 5), (4, 7)),
    "linear without bias": (lambda: nn.Linear(7, 5, bias=False), (4, 7)),
    "linear, 3-D input": (lambda: nn.Linear(7, 5), (2, 3, 7)),
    "linear, 1-D input": (lambda: nn.Linear(7, 5), (7,)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 9)),
    "conv1d, same, even kernel": (lambda: nn.Conv1d(3, 4, 4, padding="same"), (2, 3, 9)),
    "conv1d, batchless": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 5)),
    "conv2d, strides": (lambda: nn.Conv2d(3, 4, 3, stride=(2, 1), padding=(0, 2)), (2, 3, 7, 6)),
    "conv2d, dilated groups": (
        lambda: nn.Conv2d(4, 6, (3, 2), dilation=2, groups=2, bias=False),
        (2, 4, 7, 6),
    ),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (2, 4, 5, 5)),
    "conv2d, same": (
        lambda: nn.Conv2d(3, 4, (3, 4), padding="same", dilation=(1, 3)),
        (2, 3, 6, 7),
    ),
    "conv2d, valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid"), (2, 3, 6, 5)),
    "conv2d, reflect": (
        lambda: nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="reflect"),
        (2, 3, 6, 5),
    ),
    "conv2d, circular": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        (2, 3, 6, 5),
    ),
    "conv2d, replicate, same": (
        lambda: nn.Conv2d(3, 4, 4, padding="same", padding_mode="replicate"),
        (2, 3, 6, 5),
    ),
    "conv2d, batchless": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, (2, 3, 2), stride=(1, 2, 1), padding=1), (2, 2, 4, 5, 3)),
    "conv3d, same": (lambda: nn.Conv3d(2, 3, 2, padding="same"), (2, 2, 4, 3, 3)),
}
PAIRS = [
    ("0.7", "0.7", "0"),
    ("0.95", "0.5", "0"),
    ("0.6", "0", "0.8"),
    ("0", "0.7", "0"),
    ("0.5", "0.9", "0.5"),
]


def keep_top(values: torch.Tensor, sparsity: str) -> torch.Tensor:
    """Zero all but the top by sorting; counts in thousandths, so no rounding can slip in."""
    drop_thousandths = round(1000 * float(sparsity))
    k = -(-(1000 - drop_thousandths) * values.numel() // 1000)
    order = values.detach().abs().flatten().argsort(descending=True, stable=True)
    mask = torch.zeros(values.numel(), dtype=torch.bool)
    mask[order[:k]] = True
    return values.detach() * mask.view(values.shape)


def plain_function(layer: nn.Module) -> Callable[..., torch.Tensor]:
    """Return the layer's function of activations, weight and bias, without its padding mode."""
    if isinstance(layer, nn.Linear):
        return F.linear
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    function: Any = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[layer.weight.dim()]
    padding = layer.padding if layer.padding_mode == "zeros" else 0
    return lambda a, w, b: function(a, w, b, layer.stride, padding, layer.dilation, layer.groups)


def reference(
    layer: Any, activations: torch.Tensor, gradient: torch.Tensor, sparsities: tuple[str, str, str]
) -> tuple[torch.Tensor, ...]:
    """Compute output and gradients of input, weight and bias from their definitions."""
    function = plain_function(layer)
    outer = activations.detach().requires_grad_()
    padded = outer
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        padded = F.pad(outer, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
    masked_weight = keep_top(layer.weight, sparsities[0])
    bias = None if layer.bias is None else layer.bias.detach().requires_grad_()
    output = function(padded, masked_weight, bias)
    masked_gradient = keep_top(gradient, sparsities[2])
    (input_gradient,) = torch.autograd.grad(output, outer, masked_gradient, retain_graph=True)
    weight = layer.weight.detach().requires_grad_()
    against = function(keep_top(padded, sparsities[1]), weight, None)
    (weight_gradient,) = torch.autograd.grad(against, weight, masked_gradient)
    found = [output.detach(), input_gradient, weight_gradient]
    if bias is not None:
        found.extend(torch.autograd.grad(output, bias, gradient))
    return tuple(found)


def make_sparse(layer: nn.Module, *sparsities: str, period: int = 1) -> SparseLayer:
    weights, activations, gradients = sparsities
    sparsify(
        layer,
        weights,
        activation_sparsity=activations,
        gradient_sparsity=gradients,
        topk_period=period,
        masked=[""],
    )
    assert isinstance(layer, SparseLayer)
    return layer


def run(layer: Any, activations: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return output and gradients of input, weight and bias of a layer."""
    inputs = activations.detach().requires_grad_()
    output = layer(inputs)
    wanted = [inputs, layer.weight] + ([] if layer.bias is None else [layer.bias])
    return (output.detach(), *torch.autograd.grad(output, wanted, gradient))


def a_linear(*sparsities: str, period: int = 1) -> SparseLinear:
    torch.manual_seed(0)
    layer = make_sparse(nn.Linear(6, 5).double(), *sparsities, period=period)
    assert isinstance(layer, SparseLinear)
    return layer


def batch(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("sparsities", PAIRS, ids="/".join)
@pytest.mark.parametrize("case", CASES)
def test_layers_agree_with_the_reference(case: str, sparsities: tuple[str, str, str]) -> None:
    torch.manual_seed(len(case))
    construct, shape = CASES[case]
    layer = construct().double()
    activations = batch(*shape)
    gradient = torch.randn_like(layer(activations))
    expected = reference(layer, activations, gradient, sparsities)
    found = run(make_sparse(layer, *sparsities), activations, gradient)
    assert len(found) == len(expected)
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=1e-10)


def test_a_literal_linear_layer() -> None:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 1.0, -2.0], [0.5, -4.0, 1.0]]))
        layer.bias.copy_(torch.tensor([10.0, 20.0]))
    sparse = make_sparse(layer, "0.5", "0.5", "0.5")  # keeps 3, -2, -4 of the weights
    activations = torch.tensor([[1.0, 2.0, -3.0], [0.5, 0.0, 4.0]], requires_grad=True)
    output = sparse(activations)  # keeps 2, -3, 4 of the activations, only for the weight gradient
    assert output.tolist() == [[3 + 6 + 10, -8 + 20], [1.5 - 8 + 10, 20]]
    output.backward(torch.tensor([[1.0, 5.0], [-2.0, 3.0]]))  # keeps 5 and 3
    assert activations.grad is not None
    assert activations.grad.tolist() == [[0, -20, 0], [0, -12, 0]]
    assert sparse.weight.grad is not None
    assert sparse.weight.grad.tolist() == [[0, 0, 0], [0, 10, -15 + 12]]
    assert layer.bias.grad is not None
    assert layer.bias.grad.tolist() == [-1, 8]  # dense: 1 - 2 and 5 + 3


def test_all_weights_learn_although_few_are_used() -> None:
    layer = a_linear("0.95", "0", "0")
    layer(batch(4, 6)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.count_nonzero() == 30


@pytest.mark.parametrize("case", CASES)
def test_sparsity_zero_is_bit_equal_to_the_plain_layer(case: str) -> None:
    construct, shape = CASES[case]
    plain = construct()
    sparse = make_sparse(copy.deepcopy(plain), "0", "0", "0")
    activations = batch(*shape).float()
    gradient = torch.randn_like(plain(activations))
    for have, want in zip(
        run(sparse, activations, gradient), run(plain, activations, gradient), strict=True
    ):
        assert torch.equal(have, want)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["eval", "no_grad", "inference_mode", "eval with gradients"])
def test_evaluation_uses_the_top_of_the_current_weights(case: str, mode: str) -> None:
    construct, shape = CASES[case]
    plain: Any = construct().double()
    sparse = make_sparse(copy.deepcopy(plain), "0.8", "0.8", "0", period=10)
    sparse(batch(*shape)).sum().backward()  # remembers a threshold, which must not matter here
    with torch.no_grad():
        sparse.weight.mul_(-3).add_(0.1)
        plain.weight.copy_(keep_top(sparse.weight, "0.8"))
    if mode.startswith("eval"):
        sparse.eval()
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(
        mode, torch.enable_grad
    )
    with context():
        torch.testing.assert_close(sparse(batch(*shape)), plain(batch(*shape)), rtol=0, atol=1e-10)


def test_thresholds_are_reused_for_a_period() -> None:
    layer = a_linear("0.5", "0.5", "0.5", period=3)
    for step in range(7):
        activations, gradient = batch(4, 6, seed=step), batch(4, 5, seed=100 + step)
        if step % 3 == 0:
            sources = [layer.weight.detach().clone(), activations, gradient]
            kept = [keep_top(values, "0.5") for values in sources]
            thresholds = [values.abs()[values != 0].min() for values in kept]
        weight, top_activations, top_gradient = (
            values.detach() * (values.detach().abs() >= threshold)
            for values, threshold in zip(
                (layer.weight, activations, gradient), thresholds, strict=True
            )
        )
        output, input_gradient, weight_gradient, bias_gradient = run(layer, activations, gradient)
        expected = (activations @ weight.t() + layer.bias).detach()
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(input_gradient, top_gradient @ weight, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            weight_gradient, top_gradient.t() @ top_activations, rtol=0, atol=1e-12
        )
        torch.testing.assert_close(bias_gradient, gradient.sum(0), rtol=0, atol=1e-12)
        with torch.no_grad():
            layer.weight.add_(0.3 * batch(5, 6, seed=200 + step))


@pytest.mark.parametrize("again", ["load_state_dict", "set_sparsity", "train", "sparsify"])
def test_a_new_round_starts_with_exact_thresholds(again: str) -> None:
    layer = a_linear("0.5", "0.5", "0", period=10)
    layer(batch(4, 6))
    with torch.no_grad():
        layer.weight.mul_(100)  # all reach the old threshold
    if again == "load_state_dict":
        layer.load_state_dict(layer.state_dict())
    elif again == "set_sparsity":
        set_sparsity(layer, "0.5")
    elif again == "train":
        layer.train()
    else:
        make_sparse(layer, "0.5", "0.5", "0", period=10)
    expected = batch(4, 6) @ keep_top(layer.weight, "0.5").t() + layer.bias
    torch.testing.assert_close(layer(batch(4, 6)), expected, rtol=0, atol=1e-12)


def test_passes_that_do_not_train_leave_the_period_alone() -> None:
    layer = a_linear("0.5", "0.5", "0", period=2)
    layer(batch(4, 6))
    with torch.no_grad():
        layer.weight.mul_(100)
        layer(batch(4, 6))
    layer.eval()
    layer(batch(4, 6))
    layer.training = True  # train() would start afresh
    dense = batch(4, 6) @ layer.weight.t() + layer.bias
    torch.testing.assert_close(layer(batch(4, 6)), dense)  # the old threshold keeps them all


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


@pytest.mark.parametrize("construct", [lambda: nn.Linear(6, 5), lambda: nn.Conv1d(6, 5, 3)])
@pytest.mark.parametrize("frozen", ["weight", "input", "bias"])
def test_gradients_without_one_of_the_three(construct: Callable[[], Any], frozen: str) -> None:
    torch.manual_seed(0)
    layer = construct().double()
    activations = batch(4, 6) if isinstance(layer, nn.Linear) else batch(4, 6, 7)
    gradient = torch.randn_like(layer(activations))
    expected = dict(
        zip(
            ("output", "input", "weight", "bias"),
            reference(layer, activations, gradient, ("0.7", "0.7", "0")),
            strict=True,
        )
    )
    make_sparse(layer, "0.7", "0.7", "0")
    activations.requires_grad_(frozen != "input")
    if frozen != "input":
        getattr(layer, frozen).requires_grad_(False)
        del expected[frozen]
    layer(activations).backward(gradient)
    leaves = {"input": activations, "weight": layer.weight, "bias": layer.bias}
    assert leaves[frozen].grad is None
    for name in leaves.keys() - {frozen}:
        torch.testing.assert_close(leaves[name].grad, expected[name], rtol=0, atol=1e-10)


def test_gradients_accumulate() -> None:
    layer = a_linear("0.5", "0.5", "0", period=2)
    parts = [run(layer, batch(4, 6, seed=s), torch.ones(4, 5).double())[2] for s in (1, 2)]
    layer.train()
    for seed in (1, 2):
        layer(batch(4, 6, seed=seed)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, parts[0] + parts[1])


def test_a_layer_used_twice_in_one_graph() -> None:
    torch.manual_seed(0)
    layer = make_sparse(nn.Linear(6, 6).double(), "0.5", "0", "0", period=1)
    inputs = batch(4, 6).requires_grad_()
    masked = keep_top(layer.weight, "0.5")
    expected = torch.ones(4, 6).double() @ masked @ masked
    layer(layer(inputs)).sum().backward()
    torch.testing.assert_close(inputs.grad, expected)


def test_backward_through_weights_changed_meanwhile_is_an_error_as_in_torch() -> None:
    layer = a_linear("0.5", "0.5", "0")
    output = layer(batch(4, 6).requires_grad_())
    with torch.no_grad():
        layer.weight.add_(1)
    layer(batch(4, 6).requires_grad_())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_non_contiguous_inputs_and_gradients() -> None:
    layer = nn.Conv2d(3, 4, 3, padding=1).double()
    activations = batch(2, 3, 6, 6)
    gradient = batch(2, 4, 6, 6, seed=2)
    expected = reference(layer, activations, gradient, ("0.7", "0.7", "0.5"))
    make_sparse(layer, "0.7", "0.7", "0.5")
    for strided in (
        activations.to(memory_format=torch.channels_last),
        activations.transpose(2, 3).contiguous().transpose(2, 3),
        torch.stack([activations, activations], -1)[..., 0],
    ):
        assert not strided.is_contiguous()
        upstream = gradient.to(memory_format=torch.channels_last)
        for have, want in zip(run(layer, strided, upstream), expected, strict=True):
            torch.testing.assert_close(have, want, rtol=0, atol=1e-10)
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for have, want in zip(run(layer, activations, gradient), expected, strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("construct", [lambda: nn.Linear(6, 5), lambda: nn.Conv2d(6, 5, 3)])
def test_every_floating_dtype_trains(dtype: torch.dtype, construct: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    layer = make_sparse(construct(), "0.7", "0.7", "0.5").to(dtype)
    activations = batch(*((4, 6) if isinstance(layer, nn.Linear) else (2, 6, 5, 5))).to(dtype)
    exact = copy.deepcopy(layer).double()
    gradient = torch.randn_like(layer(activations))
    found = run(layer, activations, gradient)
    expected = reference(exact, activations.double(), gradient.double(), ("0.7", "0.7", "0.5"))
    for have, want in zip(found, expected, strict=True):
        assert have.dtype is dtype
        torch.testing.assert_close(have.double(), want, rtol=0.05, atol=0.05)


def test_autocast_computes_in_its_dtype_and_keeps_the_gradients_dtype() -> None:
    torch.manual_seed(0)
    layer = make_sparse(nn.Linear(6, 5), "0.5", "0.5", "0")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(batch(4, 6).float())
    assert output.dtype is torch.bfloat16
    output.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32


def test_an_empty_batch() -> None:
    for layer, shape in ((nn.Linear(6, 5), (0, 6)), (nn.Conv2d(6, 5, 3), (0, 6, 4, 4))):
        sparse = make_sparse(layer, "0.5", "0.5", "0.5")
        inputs = torch.empty(shape, requires_grad=True)
        sparse(inputs).sum().backward()
        assert inputs.grad is not None
        assert sparse.weight.grad is not None
        assert sparse.weight.grad.count_nonzero() == 0


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
