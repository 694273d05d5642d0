"""Models as lists of numpy arrays, and back."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.model_arrays import array_names, get_arrays, get_specs, set_arrays
from zerofl_flwr.payload import TensorSpec


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 3))


NAMES = [
    "0.weight",
    "0.bias",
    "1.weight",
    "1.bias",
    "1.running_mean",
    "1.running_var",
    "1.num_batches_tracked",
    "2.weight",
    "2.bias",
]


def test_names_and_specs_follow_the_state_dict() -> None:
    model = small_model()
    assert array_names(model) == NAMES
    assert get_specs(model) == [
        TensorSpec((2, 1, 3, 3), np.dtype("float32")),
        *[TensorSpec((2,), np.dtype("float32"))] * 5,
        TensorSpec((), np.dtype("int64")),
        TensorSpec((3, 4), np.dtype("float32")),
        TensorSpec((3,), np.dtype("float32")),
    ]


def test_arrays_are_copies_with_the_specs_of_the_model() -> None:
    model = small_model()
    arrays = get_arrays(model)
    assert [TensorSpec(a.shape, a.dtype) for a in arrays] == get_specs(model)
    before = arrays[0].copy()
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1)
    assert np.array_equal(arrays[0], before)


def test_loaded_arrays_come_back_bit_for_bit() -> None:
    model, other = small_model(), small_model()
    for tensor in model.state_dict().values():
        tensor.add_(3)
    arrays = get_arrays(model)
    set_arrays(other, arrays)
    for mine, theirs in zip(get_arrays(other), arrays, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert int(other.state_dict()["1.num_batches_tracked"]) == 3


def test_loading_keeps_the_tensors_and_not_the_arrays() -> None:
    model = small_model()
    weight = model.get_parameter("2.weight")
    arrays = get_arrays(model)
    arrays[7] += 1
    set_arrays(model, arrays)
    assert model.get_parameter("2.weight") is weight
    kept = weight.detach().clone()
    arrays[7] += 1
    assert torch.equal(weight, kept)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


@pytest.mark.parametrize(
    "form",
    [
        read_only,
        np.asfortranarray,
        lambda array: array.astype(np.float64),
        lambda array: np.repeat(array, 2, axis=0)[::2],
    ],
    ids=["read-only", "fortran", "float64", "strided"],
)
def test_arrays_of_any_layout_and_wider_type_load(form: Any) -> None:
    model = nn.Linear(4, 3)
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
    set_arrays(model, [form(weight), np.zeros(3, np.float32)])
    assert np.array_equal(model.weight.detach().numpy(), weight)
    assert model.weight.dtype == torch.float32


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_load_without_a_copy_of_them_or_a_warning() -> None:
    model = nn.Linear(1000, 1000)
    arrays = [read_only(np.ones((1000, 1000), np.float32)), read_only(np.zeros(1000, np.float32))]
    tracemalloc.start()
    try:
        set_arrays(model, arrays)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000  # the weight alone takes 4 MB
    assert bool((model.weight == 1).all())


def test_loading_counts_as_a_change_in_place() -> None:
    # Autograd, and the masks that sparse layers keep, tell a changed weight by its version.
    model = nn.Linear(4, 3)
    before = model.weight._version
    set_arrays(model, get_arrays(model))
    assert model.weight._version > before
    loss = (model.weight**2).sum()
    set_arrays(model, get_arrays(model))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("error")
def test_values_too_large_for_a_narrower_type_become_infinite_silently() -> None:
    model = nn.Linear(2, 1, bias=False).half()
    set_arrays(model, [np.array([[1e6, 0.5]], np.float32)])
    assert model.weight.detach().tolist() == [[float("inf"), 0.5]]


@pytest.mark.parametrize("inference", [False, True])
def test_models_of_any_layout_or_made_for_inference_load(inference: bool) -> None:
    with torch.inference_mode(inference):
        model = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weight = np.arange(24, dtype=np.float32).reshape(3, 2, 2, 2)
        set_arrays(model, [weight, np.zeros(3, np.float32)])
        assert np.array_equal(get_arrays(model)[0], weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays[:-1], "server: expected 9 arrays for this model, got 8"),
        (lambda arrays: [*arrays, arrays[0]], "server: expected 9 arrays for this model, got 10"),
        (
            lambda arrays: [*arrays[:7], arrays[7].T, arrays[8]],
            r"server, layer 2\.weight, field shape: expected shape \(3, 4\), got \(4, 3\)",
        ),
        (
            lambda arrays: [*arrays[:6], np.array(1.5), *arrays[7:]],
            r"server, layer 1\.num_batches_tracked, field dtype: cannot load float64 into int64",
        ),
        (
            lambda arrays: [*arrays[:8], np.array(["a", "b", "c"])],
            r"server, layer 2\.bias, field dtype: cannot load <U1 into float32",
        ),
    ],
    ids=["too few", "too many", "shape", "float into int", "text"],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change: Any, message: str) -> None:
    model = small_model()
    before = get_arrays(model)
    with pytest.raises(PayloadError, match=message):
        set_arrays(model, change([array + 1 for array in before]))
    for now, then in zip(get_arrays(model), before, strict=True):
        assert np.array_equal(now, then)


def test_the_error_names_who_sent_the_arrays() -> None:
    with pytest.raises(PayloadError, match="client 7: expected 2 arrays"):
        set_arrays(nn.Linear(2, 2), [], sender="client 7")


def test_bfloat16_is_refused_by_layer_wherever_it_turns_up() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    message = r"layer 1\.weight, field dtype: torch.bfloat16 has no numpy type"
    with pytest.raises(PayloadError, match=message):
        get_arrays(model)
    with pytest.raises(PayloadError, match=message):
        get_specs(model)
    with pytest.raises(PayloadError, match=message):
        set_arrays(model, [np.zeros((2, 2)), np.zeros(2), np.zeros((2, 2)), np.zeros(2)])
