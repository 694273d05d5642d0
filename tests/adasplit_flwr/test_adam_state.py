"""Adam's state as named arrays."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from adasplit_flwr.adam_state import adam_arrays, adam_specs, load_adam
from tests.adasplit_flwr.small_clients import same_arrays
from zerofl_flwr.payload import TensorSpec


def two_parameters() -> dict[str, nn.Parameter]:
    return {"a": nn.Parameter(torch.tensor([1.0, 2.0])), "b": nn.Parameter(torch.tensor([[3.0]]))}


SPECS = {
    "a": TensorSpec((2,), np.dtype("float32")),
    "b": TensorSpec((1, 1), np.dtype("float32")),
}


def test_moments_and_steps_are_those_of_the_gradients_and_others_have_none() -> None:
    parameters = two_parameters()
    adam = torch.optim.Adam(parameters.values())
    assert adam_arrays(adam, parameters) == {}
    assert adam_specs({}, SPECS) == {}
    parameters["a"].grad = torch.tensor([2.0, -4.0])
    adam.step()
    arrays = adam_arrays(adam, parameters)
    assert list(arrays) == ["exp_avg/a", "exp_avg_sq/a", "steps/a"]
    np.testing.assert_allclose(arrays["exp_avg/a"], [0.2, -0.4], rtol=1e-6)
    np.testing.assert_allclose(arrays["exp_avg_sq/a"], [0.004, 0.016], rtol=1e-6)
    assert arrays["steps/a"] == 1
    assert adam_specs(arrays, SPECS) == {
        "exp_avg/a": SPECS["a"],
        "exp_avg_sq/a": SPECS["a"],
        "steps/a": TensorSpec((), np.dtype("int64")),
    }
    assert {name: TensorSpec(a.shape, a.dtype) for name, a in arrays.items()} == adam_specs(
        arrays, SPECS
    )
    parameters["a"].grad = torch.tensor([1.0, 1.0])
    before = arrays["exp_avg/a"].copy()
    adam.step()
    assert np.array_equal(arrays["exp_avg/a"], before)


def test_a_state_that_was_loaded_goes_on_bit_for_bit_and_forgets_what_was() -> None:
    parameters = two_parameters()
    adam = torch.optim.Adam(parameters.values())
    parameters["a"].grad = torch.tensor([2.0, -4.0])
    adam.step()
    arrays = adam_arrays(adam, parameters)
    for array in arrays.values():
        array.flags.writeable = False
    others = {name: nn.Parameter(p.detach().clone()) for name, p in parameters.items()}
    other = torch.optim.Adam(others.values())
    others["b"].grad = torch.tensor([[5.0]])
    other.step()
    others["b"].data.fill_(3.0)
    load_adam(other, others, arrays)
    assert same_arrays(adam_arrays(other, others), arrays)
    for _ in range(2):
        for both, optimizer in ((parameters, adam), (others, other)):
            both["a"].grad = torch.tensor([1.0, 1.0])
            both["b"].grad = torch.tensor([[-1.0]])
            optimizer.step()
    assert same_arrays(adam_arrays(other, others), adam_arrays(adam, parameters))
    assert all(torch.equal(others[name], parameters[name]) for name in parameters)
