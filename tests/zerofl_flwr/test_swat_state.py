"""The state of a sparse layer: timing, and when a masked weight is made anew and where."""

from __future__ import annotations

import copy
from decimal import Decimal

import pytest
import torch

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.periodic_topk import Timing
from zerofl_flwr.swat_state import LayerState, check_backend

EXACT, REFRESH, REUSE = Timing.EXACT, Timing.REFRESH, Timing.REUSE


def make_state(sparsity: str = "0.5", period: int = 10) -> LayerState:
    state = LayerState("a")
    state.topk_period = period
    state.set_sparsities(Decimal(sparsity), None, None)
    return state


def test_timing_refreshes_once_a_period_and_only_training_counts() -> None:
    state = make_state(period=3)
    assert [state.next_timing(True) for _ in range(7)] == [
        REFRESH, REUSE, REUSE, REFRESH, REUSE, REUSE, REFRESH
    ]  # fmt: skip
    assert state.next_timing(False) is EXACT
    assert state.next_timing(True) is REUSE
    state.restart()
    assert state.next_timing(True) is REFRESH
    assert [make_state(period=1).next_timing(True) for _ in range(2)] == [REFRESH, REFRESH]


def test_unchanged_weights_are_masked_once() -> None:
    state = make_state()
    weight = torch.tensor([1.0, 4.0])
    first = state.masked_weight(weight, None, EXACT)
    assert state.masked_weight(weight, None, EXACT) is first
    assert first.tolist() == [0, 4]


@pytest.mark.parametrize("timing", [EXACT, REFRESH])
def test_a_change_in_place_is_seen_and_reuses_the_memory(timing: Timing) -> None:
    state = make_state()
    weight = torch.tensor([1.0, 4.0])
    first = state.masked_weight(weight, None, timing)
    weight.mul_(torch.tensor([8.0, 1.0]))
    second = state.masked_weight(weight, None, timing)
    assert second.tolist() == [8, 0]
    assert second.data_ptr() == first.data_ptr()


def test_a_change_that_escapes_the_version_counter_is_seen() -> None:
    state = make_state()
    weight = torch.nn.Parameter(torch.tensor([1.0, 4.0]))
    first = state.masked_weight(weight, None, EXACT)
    weight.data.copy_(torch.tensor([8.0, 4.0]))
    assert state.masked_weight(weight, None, EXACT).tolist() == [8, 0]
    assert first.tolist() == [0, 4]  # torch would let a backward pass through this one go on


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("timing", [EXACT, REFRESH, REUSE])
def test_a_single_value_of_a_large_weight_written_through_data_is_seen(
    timing: Timing, frozen: bool
) -> None:
    state = make_state()
    weight = torch.nn.Parameter(torch.arange(1.0, 1001.0))
    mask = weight > 400 if frozen else None
    state.masked_weight(weight, None, REFRESH)
    first = state.masked_weight(weight, mask, timing)
    assert first[776] == 777
    version = weight._version
    weight.data[776] = 2000.0
    assert weight._version == version
    second = state.masked_weight(weight, mask, timing)
    assert second[776] == 2000
    assert torch.equal(first.nonzero(), second.nonzero())
    assert first[776] == 777


def test_exact_masks_are_made_anew_after_others() -> None:
    state = make_state()
    weight = torch.tensor([1.0, 4.0, 2.0, 3.0])
    first = state.masked_weight(weight, None, EXACT)
    assert state.masked_weight(weight, torch.tensor([True] * 4), EXACT).tolist() == [1, 4, 2, 3]
    again = state.masked_weight(weight, None, EXACT)
    assert again is not first
    assert again.tolist() == first.tolist() == [0, 4, 0, 3]


def test_another_tensor_is_seen() -> None:
    state = make_state()
    weight = torch.nn.Parameter(torch.tensor([1.0, 4.0]))
    first = state.masked_weight(weight, None, EXACT)
    weight.data = torch.tensor([4.0, 1.0])
    assert state.masked_weight(weight, None, EXACT).tolist() == [4, 0]
    assert first.tolist() == [0, 4]


def test_exact_and_reused_masks_are_kept_apart() -> None:
    state = make_state()
    weight = torch.tensor([1.0, 4.0, 2.0, 3.0])
    state.masked_weight(weight, None, REFRESH)
    weight.add_(10)
    assert state.masked_weight(weight, None, REUSE).tolist() == [11, 14, 12, 13]
    assert state.masked_weight(weight, None, EXACT).tolist() == [0, 14, 0, 13]
    assert state.masked_weight(weight, None, REUSE).tolist() == [11, 14, 12, 13]


def test_the_mask_of_a_new_round_is_new() -> None:
    state = make_state("0.5")
    weight = torch.tensor([1.0, 4.0, 2.0, 3.0])
    state.masked_weight(weight, None, EXACT)
    state.set_sparsities(Decimal("0.75"), None, None)
    assert state.masked_weight(weight, None, EXACT).tolist() == [0, 4, 0, 0]


def test_a_frozen_mask_decides_and_its_change_is_seen() -> None:
    state = make_state()
    weight = torch.tensor([torch.inf, 4.0])
    frozen = torch.tensor([False, True])
    assert state.masked_weight(weight, frozen, EXACT).tolist() == [0, 4]
    frozen.logical_not_()
    assert state.masked_weight(weight, frozen, EXACT).tolist() == [torch.inf, 0]
    assert state.masked_weight(weight, None, EXACT).tolist() == [torch.inf, 0]


def test_masks_made_in_inference_mode_serve_outside() -> None:
    state = make_state()
    weight = torch.tensor([1.0, 4.0])
    with torch.inference_mode():
        masked = state.masked_weight(weight, None, EXACT)
        born_there = torch.tensor([1.0, 4.0])
        assert state.masked_weight(born_there, None, EXACT).tolist() == [0, 4]
    assert not masked.is_inference()


def test_sparsity_zero_is_the_weight_itself() -> None:
    weight = torch.tensor([1.0, 4.0])
    assert make_state("0").masked_weight(weight, None, REFRESH).data_ptr() == weight.data_ptr()


def test_copies_leave_the_masked_weight_behind() -> None:
    state = make_state()
    state.masked_weight(torch.tensor([1.0, 4.0]), None, EXACT)
    twin = copy.deepcopy(state)
    assert twin._masked is None
    assert twin.weights.sparsity == Decimal("0.5")
    assert twin.weights is not state.weights


def test_activations_follow_the_weights_until_told_otherwise() -> None:
    state = make_state("0.5")
    assert state.activations.sparsity == Decimal("0.5")
    state.set_sparsities(Decimal("0.9"), Decimal("0.1"), Decimal("0.2"))
    assert state.activations.sparsity == Decimal("0.9")
    state.activations_follow_weights = False
    state.set_sparsities(Decimal("0.9"), Decimal("0.1"), None)
    assert state.activations.sparsity == Decimal("0.1")
    assert state.gradients.sparsity == Decimal("0.2")
    state.set_sparsities(Decimal("0.3"), None, None)
    assert state.activations.sparsity == Decimal("0.1")


def test_backends() -> None:
    assert check_backend("reference") == "reference"
    with pytest.raises(SettingsError, match="unknown backend 'cuda'; did you mean 'reference'"):
        check_backend("cuda")
