"""Sparse layers against an independent masked autograd reference, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.zerofl_flwr.swat_reference import (
    CASES,
    PAIRS,
    a_linear,
    batch,
    keep_top,
    make_sparse,
    reference,
    run,
)
from zerofl_flwr.sparsify import set_sparsity


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
