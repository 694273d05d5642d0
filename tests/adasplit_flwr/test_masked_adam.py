"""Adam on weights and mask: settings, a step by hand, and what hard masks protect."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import nn

from adasplit_flwr import flat_parameters
from adasplit_flwr.flat_parameters import FlatParameters
from adasplit_flwr.mask_store import MaskRecord
from adasplit_flwr.masked_adam import AdamSettings, MaskedAdam
from tests.adasplit_flwr.server_batches import bits
from zerofl_flwr.errors import SettingsError

LN3 = math.log(3.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be a positive number"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"epsilon": -1e-8}, "epsilon is -1e-08; it must be a positive number"),
        ({"beta1": 1.0}, r"beta1 is 1.0; it must be in \[0, 1\)"),
        ({"beta2": -0.1}, r"beta2 is -0.1; it must be in \[0, 1\)"),
        ({"beta2": math.nan}, "beta2 is nan"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must not be negative"),
        ({"weight_decay": math.inf}, "weight_decay is inf"),
    ],
)
def test_settings_that_cannot_train_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        AdamSettings(**changes)


def test_the_defaults_are_those_of_torch_with_the_authors_weight_decay() -> None:
    ours, torchs = AdamSettings(), inspect.signature(torch.optim.Adam).parameters
    assert ours.learning_rate == torchs["lr"].default == 1e-3
    assert ours.epsilon == torchs["eps"].default == 1e-8
    assert (ours.beta1, ours.beta2) == torchs["betas"].default == (0.9, 0.999)
    assert ours.weight_decay == 1e-5


def two_weights() -> nn.Linear:
    layer = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 4.0]]))
    return layer


def record_of(mask: list[float]) -> MaskRecord:
    values = torch.zeros(3, len(mask), dtype=torch.float64)
    values[0] = torch.tensor(mask, dtype=torch.float64)
    return MaskRecord(values, steps=0)


# With epsilon 1 the size of the first step is lr * g / (|g| + 1), and tells the gradient's.
BY_HAND = AdamSettings(learning_rate=0.1, beta1=0.5, beta2=0.75, epsilon=1.0, weight_decay=0.25)
GRADIENT = torch.tensor([[1.0, -2.0]], dtype=torch.float64)


def test_one_soft_step_by_hand() -> None:
    layer, record = two_weights(), record_of([0.0, LN3])  # sigmoid 1/2 and 3/4
    adam = MaskedAdam(FlatParameters(layer), BY_HAND, masks="soft", mask_penalty=0.8)
    adam.step([GRADIENT], record)
    # Weights: 1 * 1/2 + 2/4 = 1, and -2 * 3/4 + 4/4 = -1/2.
    assert layer.weight.flatten().tolist() == pytest.approx([2 - 0.1 / 2, 4 + 0.1 * 0.5 / 1.5])
    assert adam.exp_avg.tolist() == pytest.approx([0.5, -0.25])
    assert adam.exp_avg_sq.tolist() == pytest.approx([0.25, 0.0625])
    # Mask: (1 * 2 + 0.8) * 1/4 + 0 = 0.7, and (-2 * 4 + 0.8) * 3/16 + LN3/4 = -1.35 + LN3/4.
    second = -1.35 + LN3 / 4
    expected = [-0.1 * 0.7 / 1.7, LN3 - 0.1 * second / (1 - second)]
    assert record.mask.tolist() == pytest.approx(expected)
    assert record.exp_avg.tolist() == pytest.approx([0.35, second / 2])
    assert record.exp_avg_sq.tolist() == pytest.approx([0.1225, second**2 / 4])
    assert (adam.steps, record.steps) == (1, 1)


def test_one_hard_step_by_hand() -> None:
    layer, record = two_weights(), record_of([-LN3, LN3])  # only the second weight is kept
    adam = MaskedAdam(FlatParameters(layer), BY_HAND, masks="hard", mask_penalty=0.8)
    adam.step([GRADIENT], record)
    # Weight decay makes -2 + 4/4 = -1 of the kept one's gradient.
    assert layer.weight.flatten().tolist() == pytest.approx([2.0, 4 + 0.1 / 2])
    assert adam.exp_avg.tolist() == [0.0, -0.5]
    assert adam.exp_avg_sq.tolist() == [0.0, 0.25]
    # The mask learns in both places: (1 * 2 + 0.8) * 3/16 - LN3/4, and as above.
    gradients = [0.525 - LN3 / 4, -1.35 + LN3 / 4]
    assert record.exp_avg.tolist() == pytest.approx([gradient / 2 for gradient in gradients])
    assert record.mask.tolist() == pytest.approx(
        [
            -LN3 - 0.1 * gradients[0] / (1 + gradients[0]),
            LN3 - 0.1 * gradients[1] / (1 - gradients[1]),
        ]
    )


def test_one_step_without_masks_by_hand() -> None:
    layer = two_weights()
    adam = MaskedAdam(FlatParameters(layer), BY_HAND, masks="none", mask_penalty=0.8)
    adam.step([GRADIENT], None)
    # 1 + 2/4 = 3/2, and -2 + 4/4 = -1.
    assert layer.weight.flatten().tolist() == pytest.approx([2 - 0.1 * 1.5 / 2.5, 4 + 0.1 / 2])
    assert adam.exp_avg.tolist() == pytest.approx([0.75, -0.5])
    assert adam.steps == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_masks_put_back_every_bit_also_of_zeros_and_huge_numbers(dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 1, bias=False, dtype=dtype)
    odd = torch.tensor([-0.0, 1e-40, 1e38, -3.0], dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(odd[None])
    adam = MaskedAdam(FlatParameters(layer), AdamSettings(), masks="hard", mask_penalty=0.0)
    adam.exp_avg.copy_(odd)
    adam.exp_avg_sq.copy_(odd.abs())
    values = torch.zeros(3, 4, dtype=dtype)
    values[0] = torch.tensor([0.0, -0.0, -1.0, -1e-30])  # none is above zero
    adam.step([torch.full((1, 4), 3.0, dtype=dtype)], MaskRecord(values, steps=0))
    same = bytes(odd.numpy().tobytes())
    assert layer.weight.detach().numpy().tobytes() == same
    assert adam.exp_avg.numpy().tobytes() == same
    assert adam.exp_avg_sq.numpy().tobytes() == odd.abs().numpy().tobytes()


@pytest.mark.parametrize("masks", ["soft", "hard", "none"])
def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, masks: str) -> None:
    results = []
    for piece in (131_072, 5):
        monkeypatch.setattr(flat_parameters, "PIECE", piece)
        layer = nn.Linear(9, 3, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-1, 1, 27).view(3, 9))
            layer.bias.fill_(0.5)
        adam = MaskedAdam(FlatParameters(layer), AdamSettings(), masks=masks, mask_penalty=0.1)
        values = torch.zeros(3, 30, dtype=torch.float64)
        values[0] = torch.linspace(1, -1, 30)
        record = None if masks == "none" else MaskRecord(values, steps=0)
        for step in range(3):
            gradients = [torch.linspace(step, -1, 27).double().view(3, 9), torch.ones(3).double()]
            adam.step(gradients, record)
        results.append(torch.cat([layer.weight.detach().flatten(), layer.bias.detach(), *values]))
    one, other = results
    assert torch.allclose(one, other, rtol=1e-14, atol=1e-15)


def test_gradients_stay_as_they_are() -> None:
    # Autograd may give two parameters one and the same tensor.
    layer, gradient = two_weights(), GRADIENT.clone()
    for masks in ("soft", "hard"):
        adam = MaskedAdam(FlatParameters(layer), BY_HAND, masks=masks, mask_penalty=0.8)
        adam.step([gradient], record_of([0.5, -0.5]))
        assert (bits(gradient) == bits(GRADIENT)).all()
