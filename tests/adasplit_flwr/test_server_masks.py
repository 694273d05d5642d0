"""Masks: how they start, what they let through, how much of it."""

from __future__ import annotations

import math

import pytest
import torch

from adasplit_flwr.server_masks import check_masks, fresh_mask, mask_density, write_effective
from zerofl_flwr.errors import SettingsError

LN3 = math.log(3.0)


def test_an_unknown_kind_is_told_the_nearest() -> None:
    assert [check_masks(masks) for masks in ("soft", "hard", "none")] == ["soft", "hard", "none"]
    with pytest.raises(SettingsError, match="unknown masks 'sofft'; did you mean 'soft'"):
        check_masks("sofft")


def test_a_fresh_mask_depends_on_seed_and_client_only() -> None:
    before = torch.random.get_rng_state()
    mask = fresh_mask(3, length=5, dtype=torch.float64, seed=1)
    assert torch.equal(mask, fresh_mask(3, length=5, dtype=torch.float64, seed=1))
    for seed, client in ((1, 4), (2, 3), (3, 1)):
        other = fresh_mask(client, length=5, dtype=torch.float64, seed=seed)
        assert not torch.isin(mask, other).any()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_fresh_masks_do_not_change_from_release_to_release() -> None:
    double = fresh_mask(3, length=3, dtype=torch.float64, seed=1)
    assert double.tolist() == pytest.approx(
        [-0.736586399121525, -0.2580574008437713, 0.37142237527592353], rel=1e-14
    )
    single = fresh_mask(3, length=2, dtype=torch.float32, seed=1)
    assert single.tolist() == pytest.approx([-0.1932895183, -0.7818387151], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fresh_masks_are_standard_normal(dtype: torch.dtype) -> None:
    mask = fresh_mask(0, length=200_000, dtype=dtype, seed=0)
    assert mask.dtype is dtype
    assert float(mask.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(mask.std()) == pytest.approx(1.0, abs=0.01)
    assert float((mask.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.005)


def test_soft_masks_scale_and_hard_ones_choose() -> None:
    weights = [torch.tensor([2.0, -4.0]), torch.tensor([8.0])]
    mask = [torch.tensor([0.0, LN3]), torch.tensor([-LN3])]
    out = [torch.full((2,), torch.nan), torch.full((1,), torch.nan)]
    write_effective("soft", weights, mask, out)
    assert torch.cat(out).tolist() == pytest.approx([1.0, -3.0, 2.0])
    write_effective("hard", weights, mask, out)
    assert torch.cat(out).tolist() == [0.0, -4.0, 0.0]  # a mask of 0 keeps nothing
    assert torch.cat(weights).tolist() == [2.0, -4.0, 8.0]


def test_density_by_hand() -> None:
    mask = torch.tensor([0.0, LN3, -LN3, LN3])
    assert mask_density("soft", mask) == pytest.approx((0.5 + 0.75 + 0.25 + 0.75) / 4)
    assert mask_density("hard", mask) == 0.5
