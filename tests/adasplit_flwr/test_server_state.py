"""The server's state as arrays: names, copies, and states of other servers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from adasplit_flwr.server_state import check_state, pack, table_in
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array


def tensors() -> dict[str, torch.Tensor]:
    return {"weights/a": torch.ones(2, 3), "untrained/n": torch.tensor(4)}


def packed() -> dict[str, Array]:
    return pack("soft", 5, tensors(), {"clients": np.array([1, 2])})


def test_names_and_values() -> None:
    state = packed()
    assert list(state) == ["masks", "steps", "weights/a", "untrained/n", "masks/clients"]
    assert (str(state["masks"]), int(state["steps"])) == ("soft", 5)
    assert state["weights/a"].tolist() == [[1.0] * 3] * 2
    assert int(state["untrained/n"]) == 4
    assert {name: column.tolist() for name, column in table_in(state).items()} == {
        "clients": [1, 2]
    }
    assert all(array.dtype != object for array in state.values())


def test_arrays_are_copies() -> None:
    parts = tensors()
    state = pack("soft", 5, parts, {})
    parts["weights/a"].zero_()
    assert state["weights/a"].sum() == 6.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights/a": None}, "the state lacks weights/a of this server part"),
        ({"weights/b": np.zeros(1)}, "the state holds weights/b, which this server part does not"),
        ({"weights/a": np.zeros((3, 2), np.float32)}, "weights/a of the state has shape (3, 2)"),
        ({"weights/a": np.zeros((2, 3))}, "dtype float64; this server part expects (2, 3) and fl"),
        ({"masks": np.array("hard")}, "the state was saved with masks hard, not with soft"),
    ],
)
def test_the_state_of_another_server_is_refused(
    changes: dict[str, Array | None], message: str
) -> None:
    check_state(packed(), tensors(), "soft")
    state = {name: array for name, array in (packed() | changes).items() if array is not None}
    with pytest.raises(SettingsError, match=re.escape(message)):
        check_state(state, tensors(), "soft")
